"""What becomes of a message when it is sent: held, refused, or passed on with fewer properties."""

from __future__ import annotations

import pytest

from broker_plugin.aside import GateAside
from broker_plugin.hook import Gate
from remoting.messages.message import Message, decode_record
from remoting.messages.properties import format_properties, parse_properties
from store.disk.errors import StoreFullError
from store.put.plugin_api import Held, PutStatus, Refused
from tests.support.delay_rig import HOST, START_MS, Rig

NOW = START_MS


def offer(rig: Rig, body: bytes = b"x", sys_flag: int = 0, **properties: str) -> tuple[object, Message]:
    message = Message(
        "T",
        3,
        flag=7,
        sys_flag=sys_flag,
        born_ms=NOW - 5,
        born_host=HOST,
        body=body,
        properties=format_properties(properties),
    )
    return rig.gate.before_put(message, NOW), message


def test_an_ordinary_message_is_not_touched() -> None:
    rig = Rig()
    answer, message = offer(rig, KEYS="a", TAGS="b", UNIQ_KEY="c")
    assert answer is None
    assert message.properties == format_properties({"KEYS": "a", "TAGS": "b", "UNIQ_KEY": "c"})
    assert rig.gate.commit_turn() is None


def test_a_held_message_is_its_finished_record_and_nothing_else_is_lost() -> None:
    rig = Rig()
    answer, message = offer(rig, b"hello", A="1", __STARTDELIVERTIME=str(NOW + 5000), TAGS="t")
    assert isinstance(answer, Held)
    assert answer.due_ms == NOW + 5000
    assert answer.offset >= 1 << 62
    assert rig.spill.entries == []
    ticket = rig.gate.commit_turn()
    assert ticket is not None
    assert ticket.waits == ((rig.spill.journal, rig.spill.journal.written),)
    (entry,) = rig.spill.entries
    stored = decode_record(entry.record)
    assert (stored.topic, stored.queue_id, stored.flag, stored.body) == ("T", 3, 7, b"hello")
    assert (stored.born_ms, stored.born_host, stored.store_host) == (NOW - 5, HOST, HOST)
    assert parse_properties(stored.properties) == {
        "A": "1",
        "__STARTDELIVERTIME": str(NOW + 5000),
        "TAGS": "t",
        "__TW_ID": f"{answer.offset - (1 << 62):x}",
        "__TW_DUE": str(NOW + 5000),
    }
    assert message.properties == stored.properties


def test_a_level_wins_over_every_timer_and_goes_on_without_them() -> None:
    rig = Rig()
    timers = {
        "__STARTDELIVERTIME": str(NOW + 9),
        "TIMER_DELAY_SEC": "1",
        "TIMER_DELAY_MS": "1",
        "TIMER_DELIVER_MS": "x",
    }
    for sys_flag in (0, 0x8):
        answer, message = offer(rig, sys_flag=sys_flag, DELAY="3", A="1", __TW_ID="forged", **timers)
        assert answer is None
        assert parse_properties(message.properties) == {"DELAY": "3", "A": "1"}
    for level in ("0", "-1"):
        answer, _ = offer(rig, DELAY=level, TIMER_DELAY_MS="5")
        assert isinstance(answer, Held)
    answer, _ = offer(rig, DELAY="x", TIMER_DELAY_MS="5")
    assert isinstance(answer, Refused)
    assert "DELAY: 'x'" in answer.remark


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({"__STARTDELIVERTIME": str(NOW)}, {"__STARTDELIVERTIME": str(NOW)}),
        ({"__STARTDELIVERTIME": "0"}, {"__STARTDELIVERTIME": "0"}),
        ({"TIMER_DELIVER_MS": str(NOW - 1)}, {"TIMER_DELIVER_MS": str(NOW - 1)}),
        ({"TIMER_DELAY_MS": "0"}, {}),
        ({"TIMER_DELAY_SEC": "0", "TIMER_DELIVER_MS": str(NOW + 50)}, {}),
        ({"TIMER_DELAY_SEC": "0", "TIMER_DELIVER_MS": str(NOW - 50)}, {"TIMER_DELIVER_MS": str(NOW - 50)}),
    ],
)
def test_a_time_that_is_not_after_now_is_an_ordinary_message(properties: dict[str, str], kept: dict[str, str]) -> None:
    rig = Rig()
    answer, message = offer(rig, A="1", **properties)
    assert answer is None
    assert parse_properties(message.properties) == {"A": "1", **kept}


def test_a_retry_that_carries_its_old_time_is_ordinary() -> None:
    rig = Rig()
    properties = format_properties({"__STARTDELIVERTIME": str(NOW - 60_000), "RETRY_TOPIC": "T", "__TW_ID": "1.2"})
    message = Message("%RETRY%G", 0, properties=properties)
    assert rig.gate.before_put(message, NOW) is None
    assert parse_properties(message.properties) == {
        "__STARTDELIVERTIME": str(NOW - 60_000),
        "RETRY_TOPIC": "T",
    }


def test_apaches_timer_internals_arm_and_disarm_nothing() -> None:
    rig = Rig()
    internals = {"TIMER_OUT_MS": "5", "TIMER_ENQUEUE_MS": "5", "TIMER_ROLL_TIMES": "1", "TIMER_DEL_UNIQKEY": "T+1"}
    answer, message = offer(rig, **internals)
    assert answer is None
    assert parse_properties(message.properties) == internals
    answer, message = offer(rig, TIMER_DELIVER_MS=str(NOW + 5), **internals)
    assert isinstance(answer, Held)
    assert answer.due_ms == NOW + 5


@pytest.mark.parametrize(
    "properties",
    [{"__TW_ID": "1", "__TW_DUE": "5", "__TW_LEVEL": "1:2"}, {"__TW_ID": "1", "K": "__STARTDELIVERTIME"}],
)
def test_our_own_names_are_stripped_from_what_a_client_brings(properties: dict[str, str]) -> None:
    rig = Rig()
    answer, message = offer(rig, A="1", **properties)
    assert answer is None
    assert "__TW_" not in message.properties
    assert "A\x011" in message.properties
    answer, message = offer(rig, A="1", TIMER_DELAY_MS="5", **properties)
    assert isinstance(answer, Held)
    assert message.properties.count("__TW_ID") == 1
    assert "__TW_LEVEL" not in message.properties


@pytest.mark.parametrize(
    ("properties", "sys_flag", "says"),
    [
        ({"__STARTDELIVERTIME": "soon"}, 0, ["__STARTDELIVERTIME", "'soon'"]),
        ({"TIMER_DELAY_MS": "-7"}, 0, ["TIMER_DELAY_MS", "'-7'", "negative"]),
        ({"TIMER_DELAY_SEC": "999999999999"}, 0, ["TIMER_DELAY_SEC", "'999999999999'", "9999"]),
        ({"TIMER_DELAY_MS": "5", "TRAN_MSG": "true"}, 0, ["half message", str(NOW + 5)]),
        ({"TIMER_DELAY_MS": "5"}, 0x4, ["half message"]),
        ({"TIMER_DELAY_MS": "5", "DELAY": "3"}, 0x4, ["half message"]),
    ],
)
def test_bad_times_are_refused_and_nothing_is_stored(
    properties: dict[str, str], sys_flag: int, says: list[str]
) -> None:
    rig = Rig()
    answer, _ = offer(rig, sys_flag=sys_flag, **properties)
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    for word in says:
        assert word in answer.remark
    assert rig.gate.commit_turn() is None
    assert rig.stats.refused == 1


def test_a_limit_is_kept_to_the_millisecond() -> None:
    rig = Rig(max_delay_ms=10_000)
    assert isinstance(offer(rig, TIMER_DELAY_SEC="10")[0], Held)
    answer, _ = offer(rig, TIMER_DELAY_MS="10001")
    assert isinstance(answer, Refused)
    assert "timerMaxDelaySec" in answer.remark


def test_limits_are_checked_while_the_sender_listens() -> None:
    rig = Rig()
    answer, _ = offer(rig, K="v" * 32_800, TIMER_DELAY_MS="5")
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    # A multi-byte text is measured in bytes.
    answer, _ = offer(rig, K="ü" * 16_400, TIMER_DELAY_MS="5")
    assert isinstance(answer, Refused)
    answer, _ = offer(rig, b"x" * ((4 << 20) + 1), TIMER_DELAY_MS="5")
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.MESSAGE_ILLEGAL
    message = Message("t" * 300, properties=format_properties({"TIMER_DELAY_MS": "5"}))
    answer = rig.gate.before_put(message, NOW)
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.MESSAGE_ILLEGAL
    message = Message("T", properties="TIMER_DELAY_MS\x015\x02K\x01\ud800\x02")
    assert isinstance(rig.gate.before_put(message, NOW), Refused)
    assert rig.gate.commit_turn() is None


def test_a_message_at_the_limit_can_still_be_moved() -> None:
    rig = Rig()
    size = 32_767 - 16
    for fill in range(32_000, 32_767):
        answer, message = offer(rig, K="v" * fill, TIMER_DELAY_MS="500")
        if isinstance(answer, Refused):
            break
        rig.gate.take_back(answer)
    largest, message = offer(rig, K="v" * (fill - 1), TIMER_DELAY_MS="500")
    assert isinstance(largest, Held)
    assert size - 1 <= len(message.properties) <= size
    rig.gate.commit_turn()
    for _ in range(12):
        rig.commands.move(largest.offset, 253_402_300_799_999, NOW)
    assert rig.commands.view(largest.offset) is not None


def test_each_message_of_a_turn_keeps_its_own_time_and_they_are_one_frame() -> None:
    rig = Rig()
    for wait in (300, 100, 200):
        rig.send(b"%d" % wait, at_ms=NOW + wait, commit=False)
    ticket = rig.gate.commit_turn()
    assert ticket is not None
    assert [entry.due_ms - NOW for entry in rig.spill.entries] == [300, 100, 200]
    rig.run(NOW + 1000)
    assert rig.target.bodies == [b"100", b"200", b"300"]
    assert rig.target.late_ms == [0, 0, 0]


def test_what_is_taken_back_is_not_stored() -> None:
    rig = Rig()
    held = [offer(rig, b"%d" % number, TIMER_DELAY_MS="5")[0] for number in range(3)]
    assert all(isinstance(found, Held) for found in held)
    for found in (held[1], held[0]):
        assert isinstance(found, Held)
        rig.gate.take_back(found)
    rig.gate.commit_turn()
    assert [entry.delay_id for entry in rig.spill.entries] == [held[2].offset]  # type: ignore[union-attr]
    with rig.lock:
        rig.gate.take_back(held[2])  # type: ignore[arg-type]  # journalled, but not yet seen by anybody
    rig.run(NOW + 100)
    assert rig.target.bodies == []
    assert rig.spill.pending_count == 0


def test_a_turn_that_cannot_be_written_leaves_nothing_pending() -> None:
    rig = Rig()
    rig.send(at_ms=NOW + 5, commit=False)
    rig.spill.full = True
    with pytest.raises(StoreFullError):
        rig.gate.commit_turn()
    rig.spill.full = False
    assert rig.gate.commit_turn() is None
    assert rig.spill.pending_count == 0


def test_a_turn_larger_than_a_frame_is_several_frames() -> None:
    rig = Rig()
    rig.gate.frame_bytes = 1000
    for number in range(20):
        rig.send(b"%02d" % number + bytes(150), at_ms=NOW + 50, commit=False)
    ticket = rig.gate.commit_turn()
    assert ticket is not None
    assert not ticket.is_done()
    rig.flusher.wait(ticket)
    assert ticket.is_done()
    rig.run(NOW + 60)
    assert [body[:2] for body in rig.target.bodies] == [b"%02d" % number for number in range(20)]


def test_a_large_batch_comes_before_what_its_turn_has_besides() -> None:
    """Its connection sent those behind it; delivered in the order of the journal, when all are due at once."""
    rig = Rig()
    aside = GateAside(rig.gate)
    for slice_ in (b"01", b"23"):
        aside.begin()
        for number in slice_:
            rig.send(bytes((number,)), at_ms=NOW + 50, commit=False)
        aside.take()
    aside.put_back()
    rig.send(b"behind", at_ms=NOW + 50, commit=False)
    rig.gate.commit_turn()
    assert [entry.delay_id for entry in rig.spill.entries] == sorted(entry.delay_id for entry in rig.spill.entries)
    rig.run(NOW + 60)
    assert rig.target.bodies == [b"0", b"1", b"2", b"3", b"behind"]


@pytest.mark.parametrize("cancels", [True, False])
def test_a_turn_of_which_only_the_first_frame_could_be_written_is_taken_out_again(cancels: bool) -> None:
    rig = Rig()
    rig.gate.frame_bytes = 1000
    append, cancel = rig.spill.append, rig.spill.cancel
    calls = []

    def second_fails(entries: object) -> object:
        calls.append(entries)
        if len(calls) > 1:
            raise StoreFullError("full")
        return append(entries)  # type: ignore[arg-type]

    def no_cancel(_: int) -> None:
        raise StoreFullError("full")

    rig.spill.append = second_fails  # type: ignore[method-assign, assignment]
    rig.spill.cancel = cancel if cancels else no_cancel  # type: ignore[method-assign, assignment]
    for _ in range(20):
        rig.send(bytes(150), at_ms=NOW + 50, commit=False)
    with pytest.raises(StoreFullError):
        rig.gate.commit_turn()
    assert rig.spill.pending_count == 0
    assert all(entry.cancelled == cancels for entry in rig.spill.entries)
    rig.run(NOW + 60)
    assert rig.target.log == []


def test_a_record_that_no_journal_frame_or_log_segment_holds_is_refused() -> None:
    rig = Rig()
    rig.gate._max_record_bytes = 500
    assert isinstance(offer(rig, bytes(100), TIMER_DELAY_MS="5")[0], Held)
    answer, _ = offer(rig, bytes(500), TIMER_DELAY_MS="5")
    assert isinstance(answer, Refused)
    assert answer.status is PutStatus.MESSAGE_ILLEGAL


def test_the_largest_record_can_be_moved() -> None:
    """Its version and a longer due time make it larger; what the store takes at most was checked at the send."""
    rig = Rig()
    limited = Gate(
        rig.spill,  # type: ignore[arg-type]
        rig.sweeper,
        HOST,
        rig.stats,
        max_delay_ms=None,
        max_body_bytes=10_000,
        max_record_bytes=700,
    )
    rig.gate = limited
    fitting = next(n for n in range(700, 0, -1) if isinstance(offer(rig, bytes(n), TIMER_DELAY_MS="5")[0], Held))
    limited.entries.clear()
    held, _ = offer(rig, bytes(fitting), TIMER_DELAY_MS="5")
    assert isinstance(held, Held)
    limited.commit_turn()
    for _ in range(12):
        rig.commands.move(held.offset, 253_402_300_799_999, NOW)
    moved = rig.commands.view(held.offset)
    assert moved is not None
    assert len(moved) <= 700


def test_what_is_accepted_is_armed_at_once_and_its_ticket_says_when_it_is_durable() -> None:
    rig = Rig()
    rig.sweep()
    rig.send(at_ms=NOW + 5, commit=False)
    ticket = rig.gate.commit_turn()
    rig.run(NOW + 10)
    assert rig.target.late_ms == [0]
    assert ticket is not None
    assert not ticket.is_done()


@pytest.mark.parametrize("due_ms", [NOW - 10, NOW])
def test_a_time_that_has_passed_is_left_for_the_append_to_check(due_ms: int) -> None:
    answer, message = offer(Rig(), __STARTDELIVERTIME=str(due_ms))
    assert answer is None
    assert message.due_ms == due_ms


def test_without_a_delay_id_left_a_timed_message_is_refused_and_others_are_not() -> None:
    rig = Rig()

    def none_left(_: int = 1) -> int:
        raise StoreFullError("epoch 1 has given out all delay ids: restart the broker")

    rig.gate._next_id = none_left  # type: ignore[method-assign]
    timed = Message("T", 0, body=b"x", properties=format_properties({"__STARTDELIVERTIME": str(START_MS + 5)}))
    refused = rig.gate.before_put(timed, START_MS)
    assert isinstance(refused, Refused)
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "restart the broker" in refused.remark
    assert rig.gate.before_put(Message("T", 0, body=b"x"), START_MS) is None
