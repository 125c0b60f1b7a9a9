"""A pop that has all its messages only counts what further queues have left. What others did to them still counts."""

import pytest

from remoting.codes import RequestCode, ResponseCode
from tests.broker.core_rig import Rig, sound
from tests.broker.pop_client import Popper

OK = ResponseCode.SUCCESS


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    rig.now_ms += 1  # pops go by a later time than the start
    rig.client().heartbeat("c", "G")
    for at in range(12):
        assert rig.client().send("T", body=b"%d" % at, e=at % 4).code == OK
    yield from sound(rig)


@pytest.fixture
def popper(rig):
    """It has got the first of three messages of each queue."""
    popper = Popper(rig.client())
    for queue_id in range(4):
        (_,) = popper.pop(maxMsgNums=1, queueId=queue_id, initMode=0)
    return popper


def test_what_the_group_has_pulled_is_not_left(rig, popper):
    (popped,) = popper.pop(maxMsgNums=1)
    assert popped.queue_id == 1
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 3}
    assert rig.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == OK
    assert [popper.ask(maxMsgNums=1).ext["restNum"] for _ in range(4)] == ["5", "4", "3", "2"]


def test_a_reset_is_told_by_it_too(rig, popper):
    """Before, acknowledgements did not move the offset of the group, and what its clients committed was ignored."""
    for queue_id in range(4):
        fields = {"group": "G", "topic": "T", "queueId": queue_id, "offset": 1, "timestamp": -1, "isForce": "true"}
        assert rig.client().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == OK
    (_,) = popper.pop(maxMsgNums=1)
    assert not [queue_id for queue_id in range(4) if rig.core.offsets.has_reset("G", "T", queue_id)]
