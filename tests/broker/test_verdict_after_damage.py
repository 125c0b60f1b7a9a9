"""What became of a message whose delivery the CommitLog has but cannot read: not known, and not "cancelled"."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from remoting.layout import OFFSET_AT
from remoting.layout.table import LONG
from remoting.messages.message import parse_message_id
from store.derived.dispatch import delivered_key
from store.derived.key_rows import key_hash
from store.disk.delay_id import id_text
from store.put.pending_api import PendingName, PendingVerdict
from store.put.plugin_api import CommandOutcome
from tests.broker.core_rig import START_MS, properties
from tests.broker.test_settings_between_starts import HOUR_MS, Life
from tests.support.colliding import word_of

SETTINGS = {"mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 8000}
DUE_MS = START_MS + 1_000


def sent(life: Life, due_ms: int, **more: object) -> int:
    """Send a delayed message; its virtual offset."""
    reply = life.client.send("T", properties(__STARTDELIVERTIME=due_ms, **more), bytes(3000))
    assert reply.code == 0
    return parse_message_id(reply.ext["msgId"])[1]


def delivered(root: Path) -> tuple[Life, list[int], int]:
    """Five delivered messages, each with a delay key of its number, and one that was cancelled."""
    life = Life(root, **SETTINGS)
    ids = [sent(life, DUE_MS + number, __DELAYKEY=f"k{number}") for number in range(5)]
    cancelled, _far = sent(life, DUE_MS + HOUR_MS), sent(life, DUE_MS + 900 * HOUR_MS)  # so the journal stays
    assert life.plugin.cancel(cancelled, life.now_ms).outcome is CommandOutcome.DONE
    life.pass_to(DUE_MS + 10)
    return life, ids, cancelled


def damage(life: Life, virtual_offset: int, at: int) -> None:
    """Flip a bit of a delivered record on the disk."""
    record = life.rig.store.find_delivered(virtual_offset)
    assert record is not None
    path, begin = life.rig.store.segment_of(LONG.unpack_from(record, OFFSET_AT)[0])
    with path.open("r+b") as file:
        file.seek(begin + at % len(record))
        (byte,) = file.read(1)
        file.seek(begin + at % len(record))
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("at", [0, 5, 200, -3])
def test_a_delivery_that_is_damaged_is_not_told_as_a_cancel(tmp_path: Path, at: int, again: bool) -> None:
    """In head, body or properties; retention has never taken anything of this log."""
    life, ids, cancelled = delivered(tmp_path / "store")
    if again:
        life.again(**SETTINGS)
    damage(life, ids[2], at)
    for number, offset in enumerate(ids):
        hurt = number == 2
        outcome = CommandOutcome.UNKNOWN if hurt else CommandOutcome.ALREADY_DELIVERED
        verdict = PendingVerdict.UNKNOWN if hurt else PendingVerdict.TOO_LATE
        assert life.plugin.cancel(offset, life.now_ms).outcome is outcome
        for name in (PendingName(offset=offset), PendingName(topic="T", key=f"k{number}")):
            assert life.plugin.pending.get(name).verdict is verdict
    assert life.plugin.cancel(cancelled, life.now_ms).outcome is CommandOutcome.ALREADY_CANCELLED
    logging.disable()
    life.rig.close()
    logging.disable(logging.NOTSET)


def test_a_delivery_behind_many_keys_with_its_hash_is_not_told_as_a_cancel(tmp_path: Path) -> None:
    """The key index has 32 bits of a key: whoever may send can make words that hide a delivery behind them."""
    life, ids, _ = delivered(tmp_path / "store")
    wanted = key_hash("", delivered_key(id_text(ids[2])))
    word = word_of("T", wanted)
    assert key_hash("T", word) == wanted
    for _ in range(70):
        life.send(properties(KEYS=word))
    assert life.plugin.cancel(ids[2], life.now_ms).outcome is not CommandOutcome.ALREADY_CANCELLED
    life.well()
    life.rig.close()


def test_a_key_that_a_later_message_had_is_not_answered_by_the_earlier_one(tmp_path: Path) -> None:
    """The later one was delivered, and few keys are remembered: only the earlier one, cancelled, was found."""
    settings = {**SETTINGS, "timewheelDelayKeysMax": 3}
    life = Life(tmp_path / "store", **settings)
    name = PendingName(topic="T", key="k")
    earlier = sent(life, DUE_MS + HOUR_MS, __DELAYKEY="k")
    assert life.plugin.cancel(earlier, life.now_ms).outcome is CommandOutcome.DONE
    later = sent(life, DUE_MS, __DELAYKEY="k")
    life.pass_to(DUE_MS)
    assert life.plugin.pending.get(name).verdict is PendingVerdict.TOO_LATE
    for number in range(4):
        sent(life, life.now_ms + 1, __DELAYKEY=f"other {number}")
        life.pass_to(life.now_ms + 10)
    answer = life.plugin.pending.get(name)
    assert (answer.verdict, answer.offset) == (PendingVerdict.TOO_LATE, later)
    life.well()
    life.rig.close()
