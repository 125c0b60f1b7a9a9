"""The key index: every key is found, wherever it is by then; damage and a shorter log cost nothing but a rebuild."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.derived.index import KeyIndex
from store.disk.errors import StoreFormatError
from store.disk.files import Files
from tests.support.simdisk import SimDisk

FOREVER = 1 << 60


def index_at(directory: Path, block_entries: int = 4, blocks_a_file: int = 2) -> KeyIndex:
    return KeyIndex(Files(), directory, threading.Lock(), block_entries=block_entries, blocks_a_file=blocks_a_file)


def fill(index: KeyIndex, numbers: range, steps: bool = True) -> None:
    for n in numbers:
        index.add("T", (f"u{n}", f"k{n % 3}"), n * 100, n)
        index.covers(n * 100 + 100)
        while steps and index.step():
            pass


def test_finds_each_key_newest_first(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    fill(index, range(50))
    assert all(index.find("T", f"u{n}", 0, FOREVER, 5) == [n * 100] for n in range(50))
    assert index.find("T", "k1", 0, FOREVER, 3) == [4900, 4600, 4300]
    assert index.find("T", "k1", 10, 13, 9) == [1300, 1000]
    assert index.find("T", "nothing", 0, FOREVER, 9) == []
    assert index.find("Other", "u1", 0, FOREVER, 9) == []
    assert index.check() == []


def test_a_key_that_begins_with_nul_belongs_to_no_topic(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    index.add("T", ("u", "\0id7"), 700, 1)
    assert index.find("", "\0id7", 0, FOREVER, 1) == [700]
    fill(index, range(20))
    assert index.find("", "\0id7", 0, FOREVER, 1) == [700]


def test_a_clean_stop_loses_nothing_and_a_crash_says_from_where(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    fill(index, range(11))
    index.close()
    again = index_at(tmp_path)
    assert again.open(FOREVER) == 1100
    assert all(again.find("T", f"u{n}", 0, FOREVER, 5) == [n * 100] for n in range(11))
    fill(again, range(11, 30))
    crashed = index_at(tmp_path)
    begin = crashed.open(FOREVER)
    assert 0 < begin <= 3000
    assert begin % 100 == 0
    fill(crashed, range(begin // 100, 30))
    assert all(crashed.find("T", f"u{n}", 0, FOREVER, 5) == [n * 100] for n in range(30))


def test_a_log_that_ends_before_the_index_cuts_the_index(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    fill(index, range(40))
    index.close()
    again = index_at(tmp_path)
    begin = again.open(2000)
    assert begin <= 2000
    assert again.find("T", "u39", 0, FOREVER, 1) == []
    assert again.find("T", "u1", 0, FOREVER, 1) == [100]
    fill(again, range(begin // 100, 20))
    assert all(again.find("T", f"u{n}", 0, FOREVER, 5) == [n * 100] for n in range(20))
    assert again.check() == []


def test_a_torn_last_block_is_cut_at_every_byte(tmp_path: Path) -> None:
    index = index_at(tmp_path, blocks_a_file=64)
    index.open(0)
    fill(index, range(8))
    (name,) = [p for p in tmp_path.iterdir() if p.name != "tail.idx"]
    whole = name.read_bytes()
    for cut in range(len(whole) - 1, len(whole) // 2, -7):
        name.write_bytes(whole[:cut])
        again = index_at(tmp_path, blocks_a_file=64)
        begin = again.open(FOREVER)
        assert begin < 800
        fill(again, range(begin // 100, 8), steps=False)
        assert all(n * 100 in again.find("T", f"u{n}", 0, FOREVER, 5) for n in range(8))


def test_another_version_is_refused(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    fill(index, range(4))
    (name,) = tmp_path.iterdir()
    data = bytearray(name.read_bytes())
    data[3] = ord("2")
    name.write_bytes(data)
    with pytest.raises(StoreFormatError, match="another version"):
        index_at(tmp_path).open(FOREVER)


def test_retention_removes_whole_files(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.open(0)
    fill(index, range(60))
    before = len(list(tmp_path.iterdir()))
    index.drop_before(3000)
    assert len(list(tmp_path.iterdir())) < before
    assert index.find("T", "u45", 0, FOREVER, 5) == [4500]
    assert index.find("T", "u1", 0, FOREVER, 5) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from("xyz"), st.booleans()), max_size=40))
def test_like_a_dictionary(tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, str, bool]]) -> None:
    directory = tmp_path_factory.mktemp("index")
    index, model = index_at(directory), dict[tuple[str, str], list[int]]()
    index.open(0)
    for n, (topic, key, reopen) in enumerate(puts):
        index.add(topic, (key,), n, n)
        index.covers(n + 1)
        model.setdefault((topic, key), []).insert(0, n)
        if reopen:
            index.close()
            index = index_at(directory)
            assert index.open(n + 1) == n + 1
        else:
            index.step()
    for topic in "AB":
        for key in "xyz":
            assert index.find(topic, key, 0, FOREVER, 99) == model.get((topic, key), [])
    index.close()


def test_a_tail_that_knows_more_than_the_log_is_not_believed_later_either(tmp_path: Path) -> None:
    """A power cut took the log's end; when the log has grown beyond it with other messages, the next crash comes."""
    index = index_at(tmp_path, block_entries=1000)
    index.open(0)
    fill(index, range(10))
    index.save_tail()
    after_cut = index_at(tmp_path, block_entries=1000)
    assert after_cut.open(700) == 0
    after_second_crash = index_at(tmp_path, block_entries=1000)
    assert after_second_crash.open(1000) == 0
    assert after_second_crash.find("T", "u9", 0, FOREVER, 5) == []


@pytest.mark.parametrize("seed", range(30))
def test_what_is_cut_off_a_block_file_stays_cut_off(seed: int) -> None:
    disk = SimDisk(seed)
    path = Path("/keyindex")

    def opened(log_end: int) -> tuple[KeyIndex, int]:
        index = KeyIndex(disk, path, threading.Lock(), block_entries=4, blocks_a_file=100)
        return index, index.open(log_end)

    index, _ = opened(0)
    fill(index, range(20))
    assert index.durable_to > 700
    _, known = opened(700)
    assert known <= 700
    disk.power_cut(0.0)
    _, again = opened(FOREVER)
    assert again == known
