"""What happens to a claimed batch while its pop is made durable."""

from __future__ import annotations

import pytest

from remoting.codes import RequestCode
from tests.broker.test_pop_restart import Machine


@pytest.fixture
def machine():
    return Machine()


def test_an_offset_is_reset_while_a_batch_waits_to_be_copied(machine):
    machine.send(b"a", b"b")
    machine.popper.pop(invisibleTime=1_000)
    machine.rig.pass_ms(1_000)
    secure = machine.pops.journal.secure

    def slow(name):
        secure(name)
        reset = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": 0, "offset": 1}
        assert machine.rig.client().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == 0
        machine.pops.journal.secure = secure

    machine.pops.journal.secure = slow
    machine.revive()
    assert machine.pops.check() == []


def test_a_topic_is_made_anew_while_a_batch_waits_to_be_copied(machine):
    machine.send(b"a", b"b")
    machine.popper.pop(invisibleTime=1_000)
    machine.rig.pass_ms(1_000)
    secure = machine.pops.journal.secure

    def slow(name):
        secure(name)
        machine.pops.journal.secure = secure
        assert machine.rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        machine.send(b"x", b"y", b"z")

    machine.pops.journal.secure = slow
    machine.revive()
    assert machine.pops.check() == []
    assert machine.bodies() == [b"x", b"y", b"z"]
    assert machine.bodies() == []
