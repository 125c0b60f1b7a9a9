"""What happens to a claimed batch while its pop is made durable."""

from __future__ import annotations

import pytest

from remoting.codes import RequestCode
from tests.broker.test_pop_restart import Machine


@pytest.fixture
def machine():
    return Machine()


def revive_and_meanwhile(machine, act):
    """Two popped messages come again; between their claim and their copies something happens once."""
    machine.send(b"a", b"b")
    machine.popper.pop(invisibleTime=1_000)
    machine.rig.pass_ms(1_000)
    secure = machine.pops.journal.secure

    def slow(name):
        secure(name)
        machine.pops.journal.secure = secure
        act()

    machine.pops.journal.secure = slow
    machine.revive()


def test_an_offset_is_reset_while_a_batch_waits_to_be_copied(machine):
    def reset():
        fields = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": 0, "offset": 1}
        assert machine.rig.client().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == 0

    revive_and_meanwhile(machine, reset)
    assert machine.pops.check() == []


def test_a_topic_is_made_anew_while_a_batch_waits_to_be_copied(machine):
    def make_anew():
        assert machine.rig.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        machine.send(b"x", b"y", b"z")

    revive_and_meanwhile(machine, make_anew)
    assert machine.pops.check() == []
    assert machine.bodies() == [b"x", b"y", b"z"]
    assert machine.bodies() == []
