"""Half messages whose queue offset was damaged on the disk: no checksum covers it, and their queue knows it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from remoting.codes import ResponseCode
from remoting.layout import QUEUE_OFFSET_AT
from tests.broker.core_rig import Client, Rig
from tests.broker.test_pop_damage import damage
from tests.broker.test_transactions import COMMIT, DISCARDED, HALF, bodies, check_round, checks_of, end, half


def say(number: int):
    """Have a record say another queue offset."""
    return lambda record: record[:QUEUE_OFFSET_AT] + struct.pack(">q", number) + record[QUEUE_OFFSET_AT + 8 :]


def rig_of(root: Path, **values: int) -> tuple[Rig, Client]:
    rig = Rig(root / "store", transactionCheckInterval=1000, transactionTimeOut=500, **values)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig, 1000)
    return rig, client


@pytest.mark.parametrize("number", [1, 99, -1, -(1 << 63)])
def test_its_producer_is_asked_about_it_and_commits_it(tmp_path: Path, number: int) -> None:
    rig, client = rig_of(tmp_path)
    first, second = half(client, b"first"), half(client, b"second")
    damage(rig, 0, say(number), HALF)
    check_round(rig, 1000)
    asked = {int(ext["tranStateTableOffset"]): (seen.queue_offset, seen.body) for ext, seen in checks_of(client)}
    assert asked == {0: (0, b"first"), 1: (1, b"second")}
    assert [half.checks for half in rig.core.halves.undecided.values()] == [1, 1]
    assert end(client, first, COMMIT, fromTransactionCheck="true") == ResponseCode.SUCCESS
    assert end(client, second, COMMIT, fromTransactionCheck="true") == ResponseCode.SUCCESS
    assert bodies(client) == [b"first", b"second"]
    assert not rig.core.halves.undecided
    rig.close()


@pytest.mark.parametrize("number", [1, 99, -1])
def test_it_is_given_up_alone(tmp_path: Path, number: int) -> None:
    """The message whose offset it named was decided in its place, and could not be committed: it was lost."""
    rig, client = rig_of(tmp_path, transactionCheckMax=2)
    half(client, b"first")
    check_round(rig, 1000)
    second = half(client, b"second")
    damage(rig, 0, say(number), HALF)
    for _ in range(2):
        check_round(rig, 1000)
    assert bodies(client, DISCARDED, 0) == [b"first"]
    assert [*rig.core.halves.undecided] == [1]
    assert end(client, second, COMMIT, fromTransactionCheck="true") == ResponseCode.SUCCESS
    assert bodies(client) == [b"second"]
    rig.close()
