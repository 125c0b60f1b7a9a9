"""Popping records that were damaged on the disk after they were stored: the others are neither lost nor held up."""

import struct

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.layout import QUEUE_OFFSET_AT, SIZE_AT
from store.log.recent import RECENT_BYTES
from tests.broker.core_rig import Rig, properties
from tests.broker.pop_client import Popper
from tests.broker.test_pop import pass_ms

OK = ResponseCode.SUCCESS
FILLER = bytes(3_000_000)


def number_at(at: int, form: str, value: int):
    return lambda record: record[:at] + struct.pack(form, value) + record[at + struct.calcsize(form) :]


DAMAGE = {
    "no-size": number_at(SIZE_AT, ">i", 0),
    "a-size-below-zero": number_at(SIZE_AT, ">i", -5),
    "a-great-size": number_at(SIZE_AT, ">i", 0x7FFFFFFF),
    "a-small-size": number_at(SIZE_AT, ">i", 1),
    "another-offset": number_at(QUEUE_OFFSET_AT, ">q", 0),
    "an-offset-below-zero": number_at(QUEUE_OFFSET_AT, ">q", -1),
    "a-great-offset": number_at(QUEUE_OFFSET_AT, ">q", 1 << 40),
    "zeros": lambda record: bytes(len(record)),
    "ones": lambda record: b"\xff" * len(record),
}


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    rig.now_ms += 1
    rig.client().heartbeat("c", "G")
    yield rig
    rig.close()


def send(rig: Rig, count: int) -> None:
    for number in range(count):
        tag = "a" if number % 2 == 0 else "b"
        assert rig.client().send("T", properties(TAGS=tag, N=number), b"%d" % number).code == OK


def push_out(rig: Rig) -> None:
    """Send so much that the newest bytes, which are kept in memory, are no longer those of the messages."""
    for _ in range(RECENT_BYTES // len(FILLER) + 1):
        assert rig.client().send("Filler", "", FILLER).code == OK


def damage(rig: Rig, queue_offset: int, how, topic: str = "T") -> None:
    position, size, _ = rig.store.entry(topic, 0, queue_offset)
    path, at = rig.store.segment_of(position)
    with open(path, "r+b") as file:
        file.seek(at)
        record = how(file.read(size))
        assert len(record) == size
        file.seek(at)
        file.write(record)


def offsets_in(ext: dict[str, str]) -> list[int]:
    return [int(number) for part in ext["msgOffsetInfo"].split(";") for number in part.split(" ")[2].split(",")]


def acknowledge(popper: Popper, ext: dict[str, str], offset: int) -> int:
    start = ext["startOffsetInfo"].split(" ")[2]
    handle = f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 broker-a 0 {offset}"
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "offset": offset, "extraInfo": handle}
    return popper.client.ask(RequestCode.ACK_MESSAGE, fields).code


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("fields", [{}, {"exp": "a", "expType": "TAG"}, {"order": "true"}], ids=["all", "tag", "order"])
def test_others_are_handed_out_and_acknowledged(rig, how, fields):
    send(rig, 5)
    push_out(rig)
    damage(rig, 2, how)
    popper = Popper(rig.client())
    reply = popper.ask(**fields)
    assert (reply.code, reply.remark) == (OK, "FOUND")
    wanted = [0, 2, 4] if "exp" in fields else [0, 1, 2, 3, 4]
    assert offsets_in(reply.ext) == wanted
    sizes = [rig.store.entry("T", 0, offset)[1] for offset in wanted]
    assert len(reply.body) == sum(sizes)
    for offset in wanted:
        assert acknowledge(popper, reply.ext, offset) == OK
    rig.core.end_turn()
    assert rig.core.offsets.get("G", "T", 0) == 5
    assert rig.core.processors.pop.in_flight.check() == []


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
def test_others_come_again(rig, how):
    """The damaged one has no copy, because nobody could read it."""
    send(rig, 5)
    push_out(rig)
    popper = Popper(rig.client())
    assert popper.ask(invisibleTime=1000).code == OK
    damage(rig, 2, how)
    pass_ms(rig, 1000)
    again = popper.pop()
    others = [popped for popped in again if popped.body in (b"0", b"1", b"3", b"4")]
    assert len(others) == 4
    assert all(popped.body == b"2" for popped in again if popped not in others), "a damaged offset alone"
    for popped in again:
        assert popper.ack(popped).code == OK
    assert rig.core.offsets.get("G", "T", 0) == 5
    assert rig.core.processors.pop.in_flight.check() == []


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_copy_holds_nothing_up(rig, how):
    send(rig, 5)
    popper = Popper(rig.client())
    assert popper.ask(invisibleTime=1000).code == OK
    pass_ms(rig, 1000)
    push_out(rig)
    damage(rig, 2, how, "%RETRY%G_T")
    reply = popper.ask()
    assert reply.code == OK
    assert offsets_in(reply.ext) == [0, 1, 2, 3, 4]
    assert rig.core.processors.pop.in_flight.check() == []
