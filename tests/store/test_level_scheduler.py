"""The level scheduler on a real store: punctual, once, in spite of crashes, failing puts and clock steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remoting.messages.message import Message, StoredMessage, decode_record, encode_host
from remoting.messages.properties import format_properties, parse_properties
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.files import Files
from store.levels.delay_levels import SCHEDULE_TOPIC, DelayLevels
from store.levels.level_scheduler import LevelScheduler
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutRecord, PutResult, PutStatus, put_record

START_MS = 1_700_000_000_000
HOST = encode_host("127.0.0.1", 10911)
OPTIONS = StoreOptions(
    commit_log_segment_bytes=1 << 20, consume_queue_segment_bytes=2000, delay_levels_ms=(1_000, 5_000, 10_000)
)


class Died(BaseException):
    """The process ends here."""


class Probe:
    """A store as the scheduler sees it, whose puts and reads fail on demand."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.checkpoint = store.checkpoint
        self.failing: dict[str, PutStatus] = {}
        self.unreadable: set[int] = set()
        self.read_error = False
        self.tries = 0
        self.dies = False

    def put_batch(self, records: Sequence[PutRecord]) -> list[PutResult]:
        self.tries += 1
        good = [record for record in records if record.topic not in self.failing]
        results = iter(self.store.put_batch(good))
        if self.dies:
            raise Died
        return [
            PutResult(self.failing[record.topic], remark="planted") if record.topic in self.failing else next(results)
            for record in records
        ]

    def read_record(self, offset: int, size: int = 0) -> bytes | None:
        if self.read_error:
            raise StoreError("planted")
        return None if offset in self.unreadable else self.store.read_record(offset, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Rig:
    """A store in a directory with a clock that stands still unless it is told otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = START_MS
        self.warnings: list[str] = []
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(Files(), self.root, OPTIONS, lambda: self.now_ms)
        self.store.store_host = HOST
        self.probe = Probe(self.store)
        self.levels = DelayLevels(OPTIONS.delay_levels_ms)
        self.scheduler = LevelScheduler(
            self.probe,
            self.levels,
            lambda: self.now_ms,
            files=Files(),
            offsets_path=self.root / "config" / "delayOffset.json",
            warn=self.warnings.append,
        )
        self.scheduler.recover()

    def checkpoint(self) -> None:
        self.store.take_checkpoint()

    def crash(self) -> None:
        """The process dies: what is in the files stays, nothing more is written."""
        self.store._release()
        self.open()

    def send(self, level: int, body: str = "", topic: str = "T", queue_id: int = 0, **properties: str) -> int:
        text = format_properties({**properties, "DELAY": str(level)})
        message = Message(topic, queue_id, 7, 0, START_MS - 5, encode_host("10.1.2.3", 4), 2, 0, body.encode(), text)
        assert self.levels.route(message)
        (result,) = self.store.put_batch([put_record(message, HOST)])
        assert result.status == PutStatus.PUT_OK
        return result.offset

    def run(self, now_ms: int) -> int | None:
        """Step until nothing is left to do at ``now_ms``."""
        self.now_ms = now_ms
        for _ in range(2000):
            wake_ms = self.scheduler.step(now_ms)
            assert self.scheduler.check() == [] or self.scheduler.progress.unreadable_count
            if wake_ms is None or wake_ms > now_ms:
                return wake_ms
        raise AssertionError("it spins")

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while entries := self.probe.queue_entries(topic, queue_id, len(found), 1000):
            records = (self.store.read_record(offset) for offset, _, _ in entries)
            found += [decode_record(record) for record in records if record is not None]
        return found

    def bodies(self, topic: str = "T") -> list[str]:
        return [message.body.decode() for message in self.delivered(topic)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_message_comes_at_its_millisecond_and_not_before(rig: Rig) -> None:
    rig.send(2, "b")
    rig.send(1, "a")
    assert rig.run(START_MS) == START_MS + 1000
    assert rig.run(START_MS + 999) == START_MS + 1000
    assert rig.bodies() == []
    assert rig.run(START_MS + 1000) == START_MS + 5000
    assert rig.bodies() == ["a"]
    assert rig.run(START_MS + 5000) is None
    assert [(m.body, m.store_ms) for m in rig.delivered()] == [(b"a", START_MS + 1000), (b"b", START_MS + 5000)]
    assert rig.scheduler.pending_count() == 0


def test_the_copy_is_what_apache_writes_and_where_it_came_from(rig: Rig) -> None:
    rig.send(3, "hello", "Orders", 5, TAGS="a", KEYS="k1 k2", UNIQ_KEY="u", WAIT="false", own="x")
    waiting = rig.delivered(SCHEDULE_TOPIC, 2)[0]
    rig.now_ms += 10_000
    rig.store.store_host = encode_host("127.0.0.9", 1)
    rig.run(rig.now_ms)
    (copy,) = rig.delivered("Orders", 5)
    for field in ("body", "flag", "sys_flag", "born_ms", "born_host", "reconsume_times", "store_host", "version"):
        assert getattr(copy, field) == getattr(waiting, field), field
    assert (copy.topic, copy.queue_id, copy.queue_offset, copy.prepared_offset) == ("Orders", 5, 0, 0)
    assert copy.properties == waiting.properties + "__TW_LEVEL\x013:0\x02"
    assert parse_properties(copy.properties)["REAL_TOPIC"] == "Orders"
    assert rig.probe.queue_entries("Orders", 5, 0, 1)[0][2] == ord("a")


def test_properties_at_the_limit_make_room_for_the_mark(rig: Rig) -> None:
    room = 32767 - len(format_properties({"long": "", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"})) - 7
    rig.send(1, long="x" * room)
    rig.run(START_MS + 1000)
    (copy,) = rig.delivered()
    properties = parse_properties(copy.properties)
    assert properties["__TW_LEVEL"] == "1:0"
    assert properties["long"] == "x" * room


@pytest.mark.parametrize("checkpoint_after", [None, 0, 1, 5, 20, 39])
def test_a_crash_at_any_point_repeats_nothing_and_loses_nothing(rig: Rig, checkpoint_after: int | None) -> None:
    for number in range(40):
        rig.send(1 + number % 3, str(number))
    rig.now_ms += 60_000
    steps = 0
    while rig.scheduler.pending_count():
        rig.scheduler.step(rig.now_ms)
        steps += 1
        if checkpoint_after is not None and len(rig.bodies()) > checkpoint_after:
            rig.checkpoint()
            checkpoint_after = None
        rig.crash()
    rig.run(rig.now_ms)
    assert sorted(map(int, rig.bodies())) == list(range(40))
    assert steps > 2


def test_a_crash_between_append_and_mark_is_found_in_the_log(rig: Rig) -> None:
    rig.send(1, "a")
    rig.checkpoint()
    rig.probe.dies = True
    rig.now_ms += 1000
    with pytest.raises(Died):
        rig.run(rig.now_ms)
    assert rig.bodies() == ["a"]
    rig.crash()
    rig.run(rig.now_ms)
    assert rig.bodies() == ["a"]


def test_a_body_that_looks_like_a_mark_is_none(rig: Rig) -> None:
    rig.send(1, "x")
    rig.send(1, "\x02__TW_LEVEL\x011:1\x02")
    rig.checkpoint()
    rig.now_ms += 1000
    rig.scheduler.step(rig.now_ms)
    rig.store.put_batch([put_record(Message("T", 0, body=b"\x02__TW_LEVEL\x011:0\x02"), HOST)])
    rig.crash()
    rig.run(rig.now_ms)
    assert len(rig.bodies()) == 3


def test_after_a_clean_end_nothing_is_scanned_and_apaches_file_says_how_far(rig: Rig) -> None:
    for _ in range(3):
        rig.send(1, "a")
    rig.send(2, "b")
    rig.run(START_MS + 1000)
    rig.scheduler.stop()
    rig.checkpoint()
    path = rig.root / "config" / "delayOffset.json"
    assert path.read_bytes().endswith(b'"offsetTable":{1:3}}')
    rig.store.close()
    rig.open()
    assert rig.run(START_MS + 1000) == START_MS + 5000
    rig.run(START_MS + 5000)
    assert rig.bodies() == ["a", "a", "a", "b"]


def test_an_apache_brokers_progress_counts(rig: Rig) -> None:
    for number in range(5):
        rig.send(1, str(number))
    rig.checkpoint()
    rig.store.close()
    path = rig.root / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        b'{\n\t"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1},\n\t"offsetTable":{1:3,7:2\n\t}\n}'
    )
    rig.open()
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["3", "4"]


def test_without_any_file_everything_that_is_there_is_delivered(rig: Rig) -> None:
    rig.send(1, "a")
    rig.store.close()
    rig.open()
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["a"]


def test_a_broken_offsets_file_falls_back_to_its_backup(rig: Rig) -> None:
    rig.send(1, "a")
    rig.send(1, "b")
    rig.store.close()
    path = rig.root / "config" / "delayOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{broken")
    with pytest.raises(StoreCorruptError, match=r"delayOffset\.json at 0: it cannot be read"):
        rig.open()
    rig.store.close()
    path.with_name("delayOffset.json.bak").write_text('{"offsetTable":{"1":1}}')
    rig.open()
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["b"]


def test_a_clock_step_back_releases_nothing_early_and_holds_up_nobody(rig: Rig) -> None:
    rig.send(1, "before")
    rig.now_ms -= 3_600_000
    rig.send(1, "after")
    assert rig.run(rig.now_ms) == START_MS - 3_600_000 + 1000
    rig.run(START_MS - 3_600_000 + 1000)
    assert rig.bodies() == ["after"]
    rig.checkpoint()
    rig.crash()
    rig.run(START_MS + 999)
    assert rig.bodies() == ["after"]
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["after", "before"]


def test_a_clock_that_steps_back_while_delivering_is_refused_by_the_append(rig: Rig) -> None:
    rig.send(1, "a")
    rig.now_ms = START_MS + 500
    assert rig.scheduler.step(START_MS + 1000) == START_MS + 1000  # the queue is looked through meanwhile
    assert rig.scheduler.step(START_MS + 1000) == START_MS + 1001
    assert rig.bodies() == []
    assert rig.run(START_MS + 500) == START_MS + 1000
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["a"]


@pytest.mark.parametrize("status", [PutStatus.MESSAGE_ILLEGAL, PutStatus.SERVICE_NOT_AVAILABLE])
def test_a_level_whose_puts_fail_holds_up_no_other_and_does_not_spin(rig: Rig, status: PutStatus) -> None:
    for number in range(50):
        rig.send(1, str(number), "Bad")
        rig.send(2, str(number), "T")
    rig.probe.failing["Bad"] = status
    rig.run(START_MS + 5000)
    assert len(rig.bodies()) == 50
    tries = rig.probe.tries
    at_ms = START_MS + 5000
    while at_ms < START_MS + 65_000:
        wake_ms = rig.run(at_ms)
        assert wake_ms is not None
        at_ms = wake_ms
    assert rig.probe.tries - tries < 300
    assert rig.warnings
    rig.probe.failing.clear()
    for _ in range(100):
        at_ms = rig.run(at_ms) or at_ms
    assert sorted(map(int, rig.bodies("Bad"))) == list(range(50))
    assert rig.scheduler.pending_count() == 0


def test_one_message_that_fails_alone_waits_alone(rig: Rig) -> None:
    for number in range(60):
        rig.send(1, str(number), "Bad" if number == 30 else "T")
    rig.probe.failing["Bad"] = PutStatus.UNKNOWN_ERROR
    rig.run(START_MS + 1000)
    assert len(rig.bodies()) == 59
    rig.checkpoint()
    rig.crash()
    rig.run(START_MS + 1000)
    assert (rig.bodies("Bad"), len(rig.bodies())) == (["30"], 59)


def test_an_unreadable_record_is_given_up_loudly(rig: Rig) -> None:
    rig.send(1, "a")
    bad = rig.send(1, "b")
    rig.send(1, "c")
    rig.probe.unreadable.add(bad)
    at_ms: int | None = START_MS + 1000
    while at_ms is not None:
        at_ms = rig.run(at_ms)
    assert rig.bodies() == ["a", "c"]
    assert any(f"message 1 at {bad} is given up" in warning for warning in rig.warnings)
    assert rig.scheduler.check() == [
        f"level 1, message 1 at CommitLog offset {bad} was given up: no whole and valid record there"
    ]
    rig.checkpoint()
    rig.crash()
    assert rig.scheduler.runtime_info()["levelsUnreadable"] == "1"
    assert len(rig.scheduler.check()) == 1


def test_a_disk_that_cannot_be_read_is_tried_again(rig: Rig) -> None:
    rig.send(1, "a")
    rig.probe.read_error = True
    wake_ms = rig.run(START_MS + 1000)
    assert wake_ms == START_MS + 1100
    rig.probe.read_error = False
    rig.run(START_MS + 1100)
    assert rig.bodies() == ["a"]


def test_half_messages_of_a_level_are_thrown_away(rig: Rig) -> None:
    rig.send(1, "a", "RMQ_SYS_TRANS_HALF_TOPIC")
    rig.run(START_MS + 1000)
    assert rig.scheduler.discarded_count == 1
    assert rig.scheduler.pending_count() == 0


def test_each_level_gets_its_share_after_an_outage(rig: Rig) -> None:
    for number in range(300):
        rig.send(1, f"old {number}")
    rig.send(3, "on time")
    rig.now_ms = START_MS + 10_000
    steps = 0
    while "on time" not in rig.bodies():
        rig.scheduler.step(rig.now_ms)
        steps += 1
    assert steps <= 3 + 2  # two to look through the queue


def test_retention_is_told_what_is_still_needed(rig: Rig) -> None:
    rig.send(1, "a")
    second = rig.send(2, "b")
    assert rig.scheduler.min_needed_offset() == 0
    rig.run(START_MS + 1000)
    assert rig.scheduler.min_needed_offset() == 0, "a power cut may take the copy"
    rig.checkpoint()
    assert rig.scheduler.min_needed_offset() == second
    rig.run(START_MS + 5000)
    assert rig.scheduler.min_needed_offset() == second
    rig.checkpoint()
    assert rig.scheduler.min_needed_offset() == 1 << 62


def test_after_a_start_all_is_needed_that_the_checkpoint_does_not_know_as_delivered(rig: Rig) -> None:
    first = rig.send(1, "a")
    rig.send(1, "b")
    rig.checkpoint()
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["a", "b"]
    rig.crash()
    rig.run(START_MS + 1000)
    assert rig.bodies() == ["a", "b"]
    assert rig.scheduler.min_needed_offset() == first
    rig.checkpoint()
    assert rig.scheduler.min_needed_offset() == 1 << 62


def test_figures_in_apaches_words(rig: Rig) -> None:
    rig.send(1, "a")
    rig.send(1, "b")
    rig.send(2, "c")
    rig.run(START_MS + 1000)
    info = rig.scheduler.runtime_info()
    assert info["scheduleMessageOffset_1"] == "2,2"
    assert info["scheduleMessageOffset_2"] == "0,1"
    assert (info["levelsDelivered"], info["levelsPending"]) == ("2", "1")


def test_many_messages_over_several_queue_files(rig: Rig) -> None:
    for number in range(1000):
        rig.send(1 + number % 2, str(number))
        rig.now_ms += 1
    rig.run(START_MS + 60_000)
    assert sorted(map(int, rig.bodies())) == list(range(1000))
    odd = [body for body in map(int, rig.bodies()) if body % 2]
    assert odd == sorted(odd)


def test_the_thread_delivers_and_stops(rig: Rig) -> None:
    rig.send(1, "a")
    rig.now_ms += 1000
    done = []
    rig.store.on_arrival = done.append
    rig.scheduler.start()
    rig.scheduler.wake(rig.now_ms)
    thread = rig.scheduler._thread
    assert thread is not None
    for _ in range(500):
        if done:
            break
        thread.join(0.01)
    rig.scheduler.stop()
    assert not thread.is_alive()
    assert done == [[("T", 0)]]
    assert rig.scheduler.failure is None


def test_a_section_that_makes_no_sense_is_an_error(rig: Rig) -> None:
    for section in (b"x", b"{}", b'{"pending":{"1":[[5,3],[7,null]]},"unreadable_count":0,"unreadable":[]}'):
        rig.store.checkpoint.sections = {"levels": section}
        with pytest.raises(StoreCorruptError, match="section 'levels'"):
            LevelScheduler(rig.probe, rig.levels, lambda: 0).recover()


def test_a_put_that_breaks_after_its_append_is_not_repeated_by_a_restart(rig: Rig) -> None:
    """The broker goes down by it, with a last checkpoint: which must not say that the copy was looked at."""
    rig.send(1, "a")

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    rig.store.on_arrival = broken
    with pytest.raises(RuntimeError, match="a bug"):
        rig.run(START_MS + 1_000)
    rig.store.on_arrival = None
    rig.checkpoint()
    rig.crash()
    rig.run(START_MS + 2_000)
    assert rig.bodies() == ["a"]
