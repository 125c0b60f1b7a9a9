"""`store.log.recent`: the newest bytes of the log from memory, always what was appended there, or None."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.log.commit_log import CommitLog
from store.log.recent import RecentBytes
from tests.store.test_commit_log import opened, record
from tests.support.raw_puts import append
from tests.support.simdisk import SimDisk

SIZE = 32


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=30), st.data())
def test_it_says_what_was_put_or_nothing(puts: list[tuple[int, int]], data: st.DataObject) -> None:
    recent = RecentBytes(SIZE)
    log: dict[int, int] = {}
    begin = end = 100
    for count, gap in puts:
        if gap:
            begin = end = end + gap
        content = bytes((end + at) % 251 for at in range(count))
        recent.put(bytearray(content), end)
        log.update(enumerate(content, end))
        end += count
        begin = max(begin, end - SIZE) if count <= SIZE else end
        places = [
            (at, data.draw(st.integers(0, end + 2 - at)))
            for at in data.draw(st.lists(st.integers(max(begin - 2, 0), end), max_size=3))
        ]
        found = recent.gather(places)
        if all(begin <= at and at + n <= end for at, n in places):
            assert found == bytes(log[at + i] for at, n in places for i in range(n))
        else:
            assert found is None


def appended(log: CommitLog, count: int) -> list[tuple[int, int]]:
    offsets, error = append(log, [record(b"abc")] * count, range(count), 1)
    assert error is None
    return [(offset, 95) for offset in offsets]


def test_the_log_serves_what_was_appended_and_no_more() -> None:
    log = opened(SimDisk(), 4 * 95 + 8)
    places = appended(log, 5)
    assert log.read_recent(places) == b"".join(log.read(*place) for place in places)
    assert log.read_recent([]) is None
    assert log.read_recent([(log.end, 95)]) is None
    log.sync()
    log.remove_oldest()
    assert log.read_recent(places[:1]) is None
    assert log.read_recent(places[-1:]) == log.read(*places[-1])


def test_what_could_not_be_written_is_not_served() -> None:
    disk = SimDisk()
    log = opened(disk, 4000)
    (first,) = appended(log, 1)
    disk.fail_at("pwrite", {1}, disk.full())
    offsets, error = append(log, [record(b"abd")], [1], 2)
    assert error is not None and not offsets
    assert log.read_recent([(first[0] + 95, 95)]) is None
    (second,) = appended(log, 1)
    assert log.read_recent([first, second]) == log.read(*first) + log.read(*second)


def test_an_opened_log_begins_with_nothing() -> None:
    disk = SimDisk()
    log = opened(disk, 4000)
    places = appended(log, 3)
    log.close()
    log = opened(disk, 4000)
    assert log.read_recent(places) is None
    assert log.read(*places[0])
