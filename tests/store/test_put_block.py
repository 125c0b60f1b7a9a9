"""A block of deliveries is what its records are one by one: in what it says, and in what a store has of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.messages.message import Message, encode_record
from store.disk.errors import StoreFullError
from store.disk.slab import Slab
from store.log.recent import adjacent_runs
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutRecord, PutStatus, put_record_of
from store.put.put_block import PutBlock
from tests.support.simdisk import SimDisk

HOST, HOST6 = bytes((127, 0, 0, 1, 0, 0, 42, 159)), bytes(20)
NOW_MS = 1_700_000_000_000


def record(
    values: dict[str, str],
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"",
    host: bytes = HOST,
    end: str = "\x02",
) -> bytes:
    text = "\x02".join(f"{name}\x01{value}" for name, value in values.items()) + end
    return encode_record(Message(topic, queue_id, body=body, properties=text), host)


def usual(n: int, **more: str) -> dict[str, str]:
    return {"WAIT": "true", "UNIQ_KEY": f"U{n}", **more, "__TW_ID": f"{n:x}", "__TW_DUE": str(NOW_MS)}


def puts_of(block: PutBlock) -> list[PutRecord]:
    """The deliveries that a block stands for."""
    block._numbers = np.zeros(len(block), np.int64)
    data = bytes(block.joined_to(bytearray(), 0, 0))
    places, sizes = block.places(0).tolist(), block.sizes.tolist()
    assert places == [sum(sizes[:row]) for row in range(len(block))] and sum(sizes) == len(data) == block.data_bytes
    topics = block.topics * len(block) if len(block.topics) == 1 else block.topics
    queues = [(topic, queue_id) for topic, queue_id, count in block.queues for _ in range(count)]
    assert len(queues) == len(block) and len({queue[:2] for queue in block.queues}) == len(block.queues)
    found = []
    for row, (at, size) in enumerate(zip(places, sizes, strict=True)):
        topic, queue_id = queues[row]
        assert topic == topics[row]
        ids = tuple("\0" + block.delay_ids[row].decode() for _ in range(bool(block.delay_ids)))
        keys = (*(column[row].decode() for column in block.keys), *ids)
        found.append(PutRecord(topic, queue_id, data[at : at + size], block.tags_codes.item(row), keys))
    return found


def in_log_order(block: PutBlock, records: list[bytes]) -> list[bytes]:
    """Records in the order in which a block of them stands in the log: each queue's together, as they came."""
    own: dict[tuple[str, int], list[bytes]] = {}
    for one in records:
        put = put_record_of(one, NOW_MS)
        own.setdefault((put.topic, put.queue_id), []).append(one)
    assert {(topic, queue_id): count for topic, queue_id, count in block.queues} == {
        queue: len(found) for queue, found in own.items()
    }
    return [one for topic, queue_id, _ in block.queues for one in own[topic, queue_id]]


def block_of(records: list[bytes], host: bytes | None = None, due_ms: int = NOW_MS) -> PutBlock | None:
    """A block, of a slab in which they lie in another order, with something between them."""
    slab = Slab.of([part for one in reversed(records) for part in (one, b"?")])
    return PutBlock.of(Slab(slab.data, slab.starts[-2::-2], slab.sizes[-2::-2]), due_ms, host)


def same(records: list[bytes]) -> bool:
    """Compare with the records one by one, if it is a block; whether it is."""
    block = block_of(records)
    if block is None:
        return False
    for found, given_record in zip(puts_of(block), in_log_order(block, records), strict=True):
        wanted = put_record_of(given_record, NOW_MS)
        for name in ("topic", "queue_id", "tags_code", "keys"):
            assert getattr(found, name) == getattr(wanted, name), name
        blanked = bytearray(given_record)
        blanked[20:36] = blanked[56:64] = b""
        own = bytearray(found.record)
        own[20:36] = own[56:64] = b""
        assert own == blanked
    return True


names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "__TW_ID", "X", "XKEYS", "WAIT", "longer-than-eight"])
usual_values = st.sampled_from(["a", "b", "long" * 20, "A" * 8])
values = st.one_of(usual_values, usual_values, st.sampled_from(["", "ü", "k1 k2", " ", "1a.3", "x\x01y"]))
SEEN = {True: 0, False: 0}


@given(
    st.lists(names, max_size=6),
    st.lists(
        st.tuples(
            st.lists(values, min_size=6, max_size=6),
            st.sampled_from(["T", "Tü", "U", "t" * 127, "t" * 200]),
            st.integers(-1, 2),
            st.sampled_from([b"", b"\x01\x02KEYS\x01", bytes(300)]),
            st.sampled_from([HOST, HOST, HOST, HOST6]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["\x02", "\x02", ""]),
)
def test_every_list_of_records(own: list[str], rows: list[tuple], end: str) -> None:  # type: ignore[type-arg]
    records = []
    for n, (texts, topic, queue_id, body, host) in enumerate(rows):
        pairs = [*zip(own, texts, strict=False), *usual(n, TAGS="A").items()]
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + end
        records.append(encode_record(Message(topic, queue_id, body=body, properties=text), host))
    SEEN[same(records)] += 1


def test_some_of_them_were_blocks() -> None:
    test_every_list_of_records()
    assert min(SEEN.values()) >= 5, SEEN


def test_lengths_topics_queues_bodies_and_tags_may_differ() -> None:
    assert same([record(usual(n)) for n in range(300)])
    assert same(
        [
            record(
                usual(n, KEYS=f"k{n}", TAGS="AB"[n % 2], user="x" * (n + 1)),
                topic=("T", "Other")[n % 3 == 0],
                queue_id=n % 5,
                body=bytes(n * 7),
            )
            for n in range(60)
        ]
    )
    assert same([record(usual(7))])


@pytest.mark.parametrize(
    "odd",
    [
        record({**usual(3), "Z": "1"}),
        record({"UNIQ_KEY": "a", "WAIT": "true", "__TW_ID": "3", "__TW_DUE": "5"}),
        record({**usual(3), "WAIT": ""}),
        record({**usual(3), "WAIT": "ü"}),
        record({**usual(3), "__TW_ID": "3.1"}),
        record(usual(3), end=""),
        record(usual(3), host=HOST6),
        record(usual(3), topic="t" * 200),
        record(usual(3))[:-1],
        record(usual(3))[:80],
        record(usual(3)) + b"\x02",
        b"",
    ],
)
def test_one_unusual_record_makes_it_no_block(odd: bytes) -> None:
    plain = [record(usual(n)) for n in range(4)]
    assert same(plain)
    for at in range(5):
        assert not same([*plain[:at], odd, *plain[at:]])


def test_some_of_the_keys_are_enough_for_a_block() -> None:
    for names in (("UNIQ_KEY",), ("__TW_ID",), ("UNIQ_KEY", "__TW_ID")):
        own = [{k: v for k, v in usual(n, KEYS=f"k{n}").items() if k not in names} for n in range(4)]
        assert same([record(values) for values in own])


def test_without_keys_or_with_several_it_is_no_block() -> None:
    none = [{k: v for k, v in usual(n).items() if k not in ("UNIQ_KEY", "__TW_ID")} for n in range(4)]
    assert not same([record(values) for values in none])
    assert not same([record(usual(n, KEYS="k1 k2")) for n in range(4)])


def test_every_damaged_byte_is_no_error() -> None:
    plain = [record(usual(n, KEYS=f"k{n}", TAGS="A"), body=b"hello") for n in range(3)]
    for at in range(len(plain[1])):
        if not 8 <= at < 84:
            for value in (0, 1, 2, 0x7F, 0xFF):
                bad = bytearray(plain[1])
                bad[at] = value
                block_of([plain[0], bytes(bad), plain[2]])


def test_records_of_another_host_name_this_one() -> None:
    other = bytes((10, 0, 0, 7, 0, 0, 42, 159))
    plain = [record(usual(n), queue_id=n % 2, host=(HOST, other)[n % 3 == 0]) for n in range(8)]
    block = block_of(plain, HOST)
    assert block is not None
    assert [put.record[64:72] for put in puts_of(block)] == [HOST] * 8
    block = block_of(plain)
    assert block is not None
    assert {put.record[64:72] for put in puts_of(block)} == {HOST, other}


class Rig:
    """Two stores: one gets blocks, the other the same records one by one."""

    def __init__(self, **options: object) -> None:
        options = {"commit_log_segment_bytes": 200_000, "consume_queue_segment_bytes": 1000, **options}
        self.disks = SimDisk(), SimDisk()
        self.now_ms = NOW_MS
        self.stores = [
            MessageStore.open(disk, Path("/s"), StoreOptions(**options), lambda: self.now_ms)  # type: ignore[arg-type]
            for disk in self.disks
        ]
        self.blocks = 0

    def put(self, records: list[bytes], due_ms: int = NOW_MS) -> PutStatus:
        block = block_of(records, due_ms=due_ms)
        assert block is not None
        (result,) = self.stores[0].put_batch([block])
        if result.status is PutStatus.PUT_OK:
            self.blocks += 1
            ordered = in_log_order(block, records)
            one_by_one = self.stores[1].put_batch([put_record_of(one, due_ms) for one in ordered])
            first = one_by_one[0]
            assert (result.status, result.offset, result.queue_offset, result.store_ms) == (
                first.status,
                first.offset,
                first.queue_offset,
                first.store_ms,
            )
        return result.status

    def compare(self) -> None:
        for store in self.stores:
            assert store.check() == []
        infos = [store.runtime_info() for store in self.stores]
        assert infos[0] == infos[1]
        for store in self.stores:
            store.close()
        first, second = map(_derived, self.disks)
        assert first == second


def _derived(disk: SimDisk) -> dict[Path, bytes]:
    """What is in the log and in what is derived from it."""
    found: dict[Path, bytes] = {}
    left = [Path("/s/commitlog"), Path("/s/consumequeue"), Path("/s/timewheel/keyindex")]
    while left:
        path = left.pop()
        if disk.is_dir(path):
            left += [path / name for name in disk.listdir(path)]
        else:
            found[path] = disk.read_file(path)
    assert found
    return found


def records(begin: int, count: int, topics: bool = False) -> list[bytes]:
    return [
        record(
            usual(n, KEYS=f"k{n}", TAGS="AB"[n % 2]),
            topic=("T", "Other")[n % 3 == 0] if topics else "T",
            queue_id=n % 5,
            body=bytes(n % 50),
        )
        for n in range(begin, begin + count)
    ]


@pytest.mark.parametrize("topics", [False, True])
def test_a_store_has_the_same_of_it_as_of_its_records_one_by_one(topics: bool) -> None:
    rig = Rig()
    for at in range(0, 400, 80):
        rig.now_ms += 3
        assert rig.put(records(at, 80, topics=topics)) is PutStatus.PUT_OK
    assert rig.blocks == 5
    rig.compare()


def test_a_queues_records_of_a_block_are_one_piece_of_the_log() -> None:
    rig = Rig()
    rig.put(records(0, 80))
    for queue_id in range(5):
        result = rig.stores[0].pull("T", queue_id, 0, 32, 1 << 20, None)
        assert len(result.positions) == 16
        assert len(adjacent_runs(result.positions)) == 1
    rig.compare()


def test_what_arrives_is_said_and_found() -> None:
    rig = Rig()
    said: list[list[tuple[str, int]]] = [[], []]
    for store, own in zip(rig.stores, said, strict=True):
        store.on_arrival = own.extend
    rig.put(records(0, 50))
    assert said[0] and set(said[0]) == set(said[1])
    result = rig.stores[0].pull("T", 3, 0, 32, 1 << 20, None)
    assert len(result.positions) == 10
    rig.compare()


REFUSALS = {
    "not due": PutStatus.NOT_DUE,
    "guarded": PutStatus.NO_PERMISSION,
    "closed": PutStatus.SERVICE_NOT_AVAILABLE,
    "moved": PutStatus.NOT_AS_ONE,
    "segment": PutStatus.SERVICE_NOT_AVAILABLE,
}


def test_levels_and_many_queues_make_no_block() -> None:
    assert block_of([record(usual(n), topic="SCHEDULE_TOPIC_XXXX") for n in range(60)]) is None
    assert block_of([record(usual(n), queue_id=n) for n in range(32)]) is not None
    assert block_of([record(usual(n), queue_id=n) for n in range(33)]) is None


@pytest.mark.parametrize("why", list(REFUSALS))
def test_what_asks_for_a_look_leaves_the_store_as_it_was(why: str) -> None:
    options = {"segment": {"commit_log_segment_bytes": 4000}}.get(why, {})
    rig = Rig(**options)
    store, due_ms, puts = rig.stores[0], NOW_MS, records(0, 60)
    if why == "not due":
        due_ms += 1
    elif why == "guarded":
        store.topic_guard = lambda _, queue_id: PutStatus.PUT_OK if queue_id else PutStatus.NO_PERMISSION
    elif why == "closed":
        store.close()
    elif why == "moved":
        store.queue_for = lambda _, queue_id: queue_id % 2
    before = store.runtime_info()
    assert rig.put(puts, due_ms) is REFUSALS[why]
    assert store.runtime_info() == before and store.commit_log.end == 0
    assert store.max_offset("T", 0) == 0


def test_what_was_accepted_is_put_whatever_the_largest_message_is_today() -> None:
    rig = Rig(max_message_bytes=1)
    puts = [*records(0, 60), record(usual(60, KEYS="k", TAGS="A"), body=bytes(70_000))]
    assert rig.put(puts, NOW_MS) is PutStatus.PUT_OK
    rig.compare()


def test_a_block_rolls_into_the_next_segment_as_a_whole() -> None:
    rig = Rig(commit_log_segment_bytes=20_000)
    for at in range(0, 240, 60):
        block = block_of(records(at, 60))
        assert block is not None and block.data_bytes > 10_000
        (result,) = rig.stores[0].put_batch([block])
        assert result.status is PutStatus.PUT_OK and result.offset % 20_000 == 0
    assert rig.stores[0].check() == []
    assert sum(rig.stores[0].max_offset("T", queue_id) for queue_id in range(5)) == 240


def test_a_full_disk_takes_nothing_of_it_and_all_of_it_later() -> None:
    rig = Rig()
    rig.put(records(0, 50))
    disk = rig.disks[0]
    disk.fail_at("pwrite", {1}, StoreFullError("full"), match="commitlog")
    block = block_of(records(50, 50))
    assert block is not None
    (result,) = rig.stores[0].put_batch([block])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE and "full" in result.remark
    assert rig.put(records(50, 50)) is PutStatus.PUT_OK
    rig.compare()
