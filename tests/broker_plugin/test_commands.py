"""Cancel, move, send now, list, view: definite answers, durable before they are given."""

from __future__ import annotations

import pytest

from remoting.messages.message import decode_record
from remoting.messages.properties import parse_properties
from store.disk.errors import StoreFullError, SyncFailedError
from store.put.plugin_api import CommandOutcome
from tests.support.delay_rig import START_MS, Rig

NOW = START_MS


def sent(rig: Rig, body: bytes = b"x", *, at_ms: int, topic: str = "T") -> int:
    offset = rig.send(body, at_ms=at_ms, topic=topic)
    assert offset is not None
    return offset


@pytest.mark.parametrize("ahead_ms", [5, 500, 5_000_000])
@pytest.mark.parametrize("swept", [False, True])
def test_cancel_takes_the_message_out_and_is_durable_when_it_answers(ahead_ms: int, swept: bool) -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + ahead_ms)
    if swept:
        rig.sweep()
    assert rig.commands.cancel(offset).outcome is CommandOutcome.DONE
    assert rig.spill.journal.synced == rig.spill.journal.written
    assert rig.spill.pending_count == 0
    rig.run(NOW + 6000)
    assert rig.target.log == []
    again = rig.commands.cancel(offset)
    assert again.outcome is CommandOutcome.ALREADY_CANCELLED
    assert again.detail
    assert rig.commands.move(offset, NOW + 9, NOW).outcome is CommandOutcome.ALREADY_CANCELLED


def test_cancel_of_what_was_delivered_says_so() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 5)
    rig.run(NOW + 10)
    assert rig.commands.cancel(offset).outcome is CommandOutcome.ALREADY_DELIVERED
    assert rig.commands.move(offset, NOW + 50, NOW).outcome is CommandOutcome.ALREADY_DELIVERED
    rig.run(NOW + 100)
    assert len(rig.target.log) == 1


def test_what_the_log_does_not_know_any_more_is_not_guessed() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 5)
    rig.run(NOW + 10)
    rig.target.log.clear()  # retention
    result = rig.commands.cancel(offset)
    assert result.outcome is CommandOutcome.UNKNOWN
    assert "delivered or cancelled" in result.detail


def test_cancel_of_what_never_was() -> None:
    rig = Rig()
    assert rig.commands.cancel((1 << 62) + 5).outcome is CommandOutcome.UNKNOWN
    assert rig.commands.cancel(5).outcome is CommandOutcome.UNKNOWN


def test_move_gives_another_time_and_keeps_the_id() -> None:
    rig = Rig()
    offset = sent(rig, b"m", at_ms=NOW + 100)
    assert rig.commands.move(offset, NOW + 3000, NOW).outcome is CommandOutcome.DONE
    assert rig.spill.journal.synced == rig.spill.journal.written
    rig.run(NOW + 2999)
    assert rig.target.log == []
    assert rig.commands.move(offset, NOW + 4000, rig.clock.now_ms).outcome is CommandOutcome.DONE
    rig.run(NOW + 5000)
    assert rig.target.bodies == [b"m"]
    ((now, put),) = rig.target.log
    assert now == NOW + 4000
    stored = decode_record(put.record)
    assert parse_properties(stored.properties) == {
        "__STARTDELIVERTIME": str(NOW + 100),
        "__TW_ID": f"{offset - (1 << 62):x}.2",
        "__TW_DUE": str(NOW + 4000),
    }
    assert rig.stats.moved == 2


def test_moving_to_an_earlier_time_removes_the_time_that_would_delay_it_again() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 86_400_000)
    rig.sweep()
    result = rig.commands.move(offset, NOW + 20, NOW)
    assert result.outcome is CommandOutcome.DONE
    assert str(NOW + 20) in result.detail
    assert rig.rung == 1  # due before the sweeper's next wake
    rig.run(NOW + 30)
    ((now, put),) = rig.target.log
    assert now == NOW + 20
    assert "__STARTDELIVERTIME" not in parse_properties(decode_record(put.record).properties)


def test_send_now_and_times_in_the_past_mean_now() -> None:
    rig = Rig()
    first, second = sent(rig, b"1", at_ms=NOW + 10**9), sent(rig, b"2", at_ms=NOW + 10**9)
    rig.sweep()
    rig.commands.move(first, NOW, NOW)
    rig.commands.move(second, -5, NOW)
    rig.run(NOW)
    assert rig.target.bodies == [b"1", b"2"]
    assert rig.target.late_ms == [0, 0]


def test_a_move_beyond_the_year_9999_is_an_error() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 50)
    with pytest.raises(ValueError, match="9999"):
        rig.commands.move(offset, 253_402_300_800_000, NOW)
    rig.run(NOW + 60)
    assert len(rig.target.log) == 1


def test_commands_find_what_was_accepted_a_moment_ago() -> None:
    rig = Rig()
    rig.sweep()
    offset = sent(rig, at_ms=NOW + 10**6)
    assert rig.commands.view(offset) is not None
    assert rig.commands.cancel(offset).outcome is CommandOutcome.DONE


def test_a_cancel_that_cannot_be_journalled_changes_nothing() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 50)
    rig.spill.full = True
    with pytest.raises(StoreFullError):
        rig.commands.cancel(offset)
    rig.spill.full = False
    rig.run(NOW + 60)
    assert len(rig.target.log) == 1


def test_an_answer_about_a_cancel_waits_for_its_sync() -> None:
    rig = Rig()
    offset = sent(rig, at_ms=NOW + 50)
    rig.spill.journal.broken = True
    with pytest.raises(SyncFailedError):
        rig.commands.cancel(offset)
    with pytest.raises(SyncFailedError):
        rig.commands.cancel(offset)  # "already cancelled" would promise what is not durable
    rig.spill.journal.broken = False
    assert rig.commands.cancel(offset).outcome is CommandOutcome.ALREADY_CANCELLED
    rig.run(NOW + 60)
    assert rig.target.log == []


def test_cancel_and_move_of_a_failed_message() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    offsets = [sent(rig, b"%d" % number, at_ms=NOW + 5, topic="gone") for number in range(3)]
    rig.run(NOW + 10)
    assert rig.recovery.failed_count == 3
    assert rig.commands.cancel(offsets[0]).outcome is CommandOutcome.DONE
    assert rig.commands.move(offsets[1], NOW + 5000, rig.clock.now_ms).outcome is CommandOutcome.DONE
    assert rig.recovery.failed_count == 1
    rig.target.missing.clear()
    rig.run(NOW + 70_000)
    assert sorted(rig.target.bodies) == [b"1", b"2"]
    assert rig.recovery.failed_count == 0


def test_a_pending_message_is_viewed_in_its_stored_form_under_its_virtual_offset() -> None:
    rig = Rig()
    offset = sent(rig, b"hello", at_ms=NOW + 50)
    record = rig.commands.view(offset)
    assert record is not None
    stored = decode_record(record)
    assert (stored.body, stored.offset, stored.topic) == (b"hello", offset, "T")
    rig.run(NOW + 60)
    assert rig.commands.view(offset) is None
    assert rig.commands.view((1 << 62) + 99) is None


def test_listing_pages_through_everything_in_due_order() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    sent(rig, at_ms=NOW + 5, topic="gone")
    rig.run(NOW + 10)
    offsets = {sent(rig, b"x" * number, at_ms=NOW + 50 + 7 * number % 100): number for number in range(100)}
    rows = []
    after = None
    while page := rig.commands.list_pending(after, 33, rig.clock.now_ms):
        rows += page
        after = (page[-1].due_ms, page[-1].offset)
    assert len(rows) == 101
    keys = [(row.due_ms, row.offset) for row in rows]
    assert keys == sorted(keys)
    assert [row.failed for row in rows] == [True] + [False] * 100
    for row in rows[1:]:
        assert row.offset in offsets
        assert row.topic == "T"
        assert row.size > 88 + offsets[row.offset]
    assert rig.spill.read_max <= 32


def test_a_listing_shows_a_record_that_cannot_be_read() -> None:
    rig = Rig()
    sent(rig, at_ms=NOW + 500)
    rig.spill.entries[0].bad = True
    (row,) = rig.commands.list_pending(None, 10, NOW)
    assert row.failed
    assert row.topic == ""


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_message_whose_refused_move_may_come_back_is_not_delivered_meanwhile(count: int) -> None:
    """The journal could not clear what the failed write has left: by a crash the message would be moved after all."""
    rig = Rig()
    offsets = [sent(rig, b"%d" % n, at_ms=NOW + 10) for n in range(count)]
    doubtful = offsets[count // 2]
    rig.spill.in_doubt = frozenset([doubtful])
    rig.run(NOW + 5_000)
    assert sorted(rig.target.bodies) == sorted(b"%d" % n for n in range(count) if n != count // 2)
    assert rig.recovery.failed_count == 1
    rig.spill.in_doubt = frozenset()
    rig.run(NOW + 200_000)
    assert sorted(rig.target.bodies) == sorted(b"%d" % n for n in range(count))
    assert rig.recovery.failed_count == 0
