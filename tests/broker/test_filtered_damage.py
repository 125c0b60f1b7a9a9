"""Large records that were damaged on the disk, and filters that read their properties: none holds its queue up."""

import struct

import pytest

from remoting.codes import ResponseCode
from remoting.layout import BODY_BYTES_AT, SIZE_AT, SYS_FLAG_AT
from tests.broker.core_rig import Rig, properties
from tests.broker.pop_client import Popper
from tests.broker.test_pop_damage import acknowledge, damage, number_at, offsets_in, push_out

OK = ResponseCode.SUCCESS
LARGE = bytes(20_000)
"""Of such a message only what stands before and behind the body is read."""
BODY_BYTES = [0x7FFFFFFF, len(LARGE) + 1_000, len(LARGE) + 100, -1, -100, -(1 << 31)]
DAMAGE = {f"a-body-of-{count}": number_at(BODY_BYTES_AT, ">i", count) for count in BODY_BYTES}
DAMAGE |= {
    "zeros": lambda record: bytes(len(record)),
    "ones": lambda record: b"\xff" * len(record),
    "a-great-size": number_at(SIZE_AT, ">i", 0x7FFFFFFF),
    "hosts-of-more-bytes": lambda record: record[:SYS_FLAG_AT] + struct.pack(">i", 0x30) + record[SYS_FLAG_AT + 4 :],
}


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, enablePropertyFilter="true")
    rig.now_ms += 1
    rig.client().heartbeat("c", "G")
    for number in range(5):
        assert rig.client().send("T", properties(N=number), LARGE).code == OK
    push_out(rig)
    yield rig
    rig.close()


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_a_pull_goes_on_behind_it(rig, how, damaged):
    """With a body beyond the record, each pull was told to ask for the same message again, at once."""
    damage(rig, damaged, how)
    at, sizes = 0, []
    for _ in range(12):
        reply = rig.client().pull("T", at, subscription="N >= 0", expressionType="SQL92")
        at = int(reply.ext["nextBeginOffset"])
        sizes.append(len(reply.body))
        if at == 5:
            break
    others = [rig.store.entry("T", 0, offset)[1] for offset in range(5) if offset != damaged]
    assert at == 5
    assert sum(sizes) - sum(others) in (0, rig.store.entry("T", 0, damaged)[1])


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_a_pop_goes_on_behind_it(rig, how, damaged):
    damage(rig, damaged, how)
    popper, found = Popper(rig.client()), []
    for _ in range(4):
        reply = popper.ask(exp="N >= 0", expType="SQL92")
        if reply.code != OK:
            break
        for offset in offsets_in(reply.ext):
            found.append(offset)
            assert acknowledge(popper, reply.ext, offset) == OK
    assert [offset for offset in found if offset != damaged] == [offset for offset in range(5) if offset != damaged]
    rig.core.end_turn()
    assert rig.core.offsets.get("G", "T", 0) == 5
    assert rig.core.processors.pop.in_flight.check() == []
