"""Half messages at the limits of their size, so that they can be decided, shown and given up, and of their patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.transactions import transaction_messages
from broker.transactions.transaction_messages import immunity_ms
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import MAX_PROPERTIES_BYTES, parse_message_id, record_fields
from remoting.messages.properties import parse_properties
from tests.broker.core_rig import Client, Rig, properties
from tests.broker.test_transactions import (
    COMMIT,
    DISCARDED,
    HALF,
    again,
    bodies,
    check_round,
    checks_of,
    end,
    half,
)

ROOM = len("TRANSACTION_CHECK_TIMES") + 2 + 10
HOUR_MS = 3_600_000


def rig_of(path: Path, **values: Any) -> tuple[Rig, Client]:
    rig = Rig(path / "store", **values)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig)
    return rig, client


def fill(client: Client, left: int, letter: str = "x") -> str:
    """A value that leaves so many bytes free in a half message's properties."""
    half(client, b"measure", FILL=letter)
    _, _, text = record_fields([record for _, record in client.rig.store.scan(0)][-1])
    return letter * ((MAX_PROPERTIES_BYTES - left - len(text.encode())) // len(letter.encode()) + 1)


def refused(client: Client, **more: Any) -> str:
    text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="KEY-refused", TAGS="A", **more)
    reply = client.send("T", text, b"refused", g=client.rig.now_ms, e=1, f=4)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    return reply.remark or ""


def unreserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept as older versions did."""
    from broker.transactions import transaction_processor as transaction

    monkeypatch.setattr(transaction, "no_room", lambda *_: "")


@pytest.mark.parametrize("letter", ["x", "é", "語"])
def test_the_room_that_is_needed_later_is_kept(tmp_path: Path, letter: str) -> None:
    rig, client = rig_of(tmp_path, transactionCheckMax=2)
    value = fill(client, ROOM, letter)
    remark = refused(client, FILL=value + letter)
    assert f"at most {MAX_PROPERTIES_BYTES - ROOM}" in remark, remark
    ids = half(client, b"measure", FILL=value)
    for checks in (1, 2):
        check_round(rig)
        seen = [one for _, one in checks_of(client) if parse_properties(one.properties)["FILL"] == value]
        assert [parse_properties(one.properties)["TRANSACTION_CHECK_TIMES"] for one in seen] == [str(checks)]
    assert end(client, ids, COMMIT, fromTransactionCheck="true") == 0
    (stored,) = client.messages("T", 1)
    assert (
        parse_properties(stored.properties)["FILL"],
        parse_properties(stored.properties)["TRANSACTION_CHECK_TIMES"],
    ) == (value, "2")
    half(client, b"measure", FILL=value)
    for _ in range(4):
        check_round(rig)
    assert [parse_properties(one.properties)["FILL"] for one in client.messages(DISCARDED)][-1] == value
    assert not rig.core.halves.undecided
    rig.close()


def test_the_largest_record_can_be_committed(tmp_path: Path) -> None:
    rig, client = rig_of(tmp_path, mappedFileSizeCommitLog=8192, transactionCheckMax=1)
    topic = "T" * 127
    accepted = 0
    for size in range(6700, 8192, 7):
        text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"K{size}")
        reply = client.send(topic, text, bytes(size), g=rig.now_ms, f=4)
        if reply.code:
            assert (reply.code, "at most" in (reply.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
            break
        accepted += 1
    assert accepted
    for _ in range(3):
        check_round(rig)
    assert not rig.core.halves.undecided
    assert len(client.messages(DISCARDED)) == accepted
    rig.close()


@pytest.mark.parametrize("left", [0, 1, ROOM - 11, ROOM - 10, ROOM - 1])
def test_one_that_is_too_large_already_is_shown_and_given_up(
    tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody else of its turn goes without an answer."""
    rig, client = rig_of(tmp_path, transactionCheckMax=1)
    unreserved(monkeypatch)
    value = fill(client, left)
    half(client, b"measure", FILL=value)
    rig.store._release()
    rig, client = again(rig, tmp_path / "store", transactionCheckMax=1)
    check_round(rig)
    opaque = client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("U"), b"other")
    check_round(rig)
    taken = client.take()
    assert [command.code for command in taken if command.is_response and command.opaque == opaque] == [0]
    assert value in [parse_properties(one.properties)["FILL"] for one in map_checks(taken)]
    check_round(rig)
    assert value in [parse_properties(one.properties)["FILL"] for one in client.messages(DISCARDED)]
    assert not rig.core.halves.undecided
    rig.core.processors.checks.publish(rig.now_ms, True)
    rig.store.take_checkpoint()
    rig.core.processors.checks.publish(rig.now_ms + 1, True)
    assert rig.core.halves.pin > rig.store.commit_log.end, "nothing is pinned any more"
    rig.close()


def map_checks(commands: list[Any]) -> list[Any]:
    from remoting.messages.message import decode_record

    return [decode_record(one.body) for one in commands if one.code == RequestCode.CHECK_TRANSACTION_STATE]


@pytest.mark.pure
def test_an_error_of_one_answer_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the turn of a check, of a refused turn, and of one that waits for its sync."""

    def broken(*_: Any) -> bytes:
        raise ValueError("nobody foresaw this")

    for mode in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        rig, client = rig_of(tmp_path / mode, flushDiskType=mode)
        turn = rig.core.turn
        from remoting.command import RemotingCommand
        from remoting.messages.message import Message

        for fails in (False, True):
            with monkeypatch.context() as patched:
                if fails:
                    patched.setattr(type(rig.store), "put_batch", broken)
                first = client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("U"), b"1")
                odd = RemotingCommand(1, 4711)
                turn.put_request(client.channel, odd, [Message("U", body=b"2")], broken, rig.now_ms)
                last = client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("U"), b"3")
                rig.core.end_turn()
            for _ in range(3):
                rig.store.flusher.step(rig.now_ms)
            codes = {reply.opaque: (reply.code, reply.remark) for reply in client.take()}
            assert codes[4711] == (ResponseCode.SYSTEM_ERROR, "ValueError: nobody foresaw this")
            assert (codes[first][0] == 0, codes[last][0] == 0) == (not fails, not fails)
        assert turn.waiting == 0
        rig.close()


@pytest.mark.parametrize("checked", [False, True])
def test_what_cannot_be_shown_is_given_up_all_the_same(
    tmp_path: Path, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, client = rig_of(tmp_path, transactionCheckMax=2)
    half(client)
    if checked:
        check_round(rig)
    from broker.transactions import transaction_checks
    from remoting.errors import MessageError

    def cannot(*_: Any) -> bytes:
        raise MessageError("it does not fit")

    monkeypatch.setattr(transaction_checks, "check_body", cannot)
    for _ in range(4):
        check_round(rig)
    assert [one.body for one in client.messages(DISCARDED)] == [b"body"]
    rig.close()


# ------------------------------------------------------------------------------------------------ patience


@pytest.mark.parametrize(
    ("text", "known_ms"),
    [
        ("600", 600_000),
        ("0", 0),
        ("999999999999", 999_999_999_999_000),
        ("1000000000000", None),
        ("-1", None),
        ("-99999999999999999999", None),
        ("+5", None),
        ("1.5", None),
        ("x", None),
        ("٣", None),
        ("9" * 5_000, None),
    ],
)
@pytest.mark.parametrize("restart", [False, True])
def test_no_immunity_outlasts_the_time_that_files_are_kept(
    tmp_path: Path, text: str, known_ms: int | None, restart: bool
) -> None:
    """What is no number of seconds counts as not said; an immunity beyond ``fileReservedTime`` ends there."""
    assert immunity_ms(properties(CHECK_IMMUNITY_TIME_IN_SECONDS=text)) == known_ms
    rig, client = rig_of(tmp_path, fileReservedTime=1)
    half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    if restart:
        rig.store._release()
        rig, client = again(rig, tmp_path / "store", fileReservedTime=1)
    check_round(rig)
    check_round(rig)
    expected = known_ms is None or known_ms <= 30_000
    assert bool(checks_of(client)) == expected
    check_round(rig, HOUR_MS - 120_000)
    assert client.messages(DISCARDED) == []
    check_round(rig, 120_001)
    check_round(rig)
    assert [one.body for one in client.messages(DISCARDED)] == [b"body"]
    assert not rig.core.halves.undecided
    rig.close()


def test_a_resumed_one_has_no_endless_patience_either(tmp_path: Path) -> None:
    rig, client = rig_of(tmp_path, fileReservedTime=1)
    half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="999999999999")
    check_round(rig, HOUR_MS + 30_001)
    (given_up,) = client.messages(DISCARDED)
    assert client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": given_up.message_id}).code == 0
    assert len(rig.core.halves.undecided) == 1
    check_round(rig, HOUR_MS + 30_001)
    assert len(client.messages(DISCARDED)) == 2
    rig.close()


def test_the_count_goes_where_it_has_no_room() -> None:
    text = properties(A="x" * (MAX_PROPERTIES_BYTES - 20))
    assert transaction_messages._with_checks(text, 7) == text
    assert transaction_messages._with_checks(properties(A="x"), 7) == properties(A="x", TRANSACTION_CHECK_TIMES=7)


def test_a_half_message_for_a_retry_topic_needs_its_group(tmp_path: Path) -> None:
    """As any send to it, and as Apache says; it went by that check."""
    rig, client = rig_of(tmp_path, autoCreateSubscriptionGroup="false")
    for flag, mark in ((4, {}), (0, {"TRAN_MSG": "true"}), (0, {})):
        text = properties(PGROUP="pg", UNIQ_KEY="K", **mark)
        for topic in ("%RETRY%nobody", "%RETRY%"):
            reply = client.send(topic, text, g=rig.now_ms, f=flag)
            assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert rig.store.max_offset(HALF, 0) == 0
    assert bodies(client) == []
    rig.close()


def test_in_small_segments_what_is_accepted_can_be_committed(tmp_path: Path) -> None:
    """The committed message and the op message behind it go into one segment together."""
    rig, client = rig_of(tmp_path, mappedFileSizeCommitLog=16384, maxMessageSize=8100)
    accepted = []
    for pad in range(7000, 8100, 11):
        text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"U{pad}", pad="p" * pad)
        reply = client.send("T", text, bytes(8100), g=rig.now_ms, f=4)
        if reply.code == 0:
            accepted.append((pad, reply))
    assert 0 < len(accepted) < 100
    for pad, reply in accepted:
        fields = {
            "producerGroup": "pg",
            "tranStateTableOffset": reply.ext["queueOffset"],
            "commitLogOffset": parse_message_id(reply.ext["msgId"])[1],
            "transactionId": f"U{pad}",
            "commitOrRollback": COMMIT,
        }
        assert client.ask(RequestCode.END_TRANSACTION, fields).code == 0, pad
    rig.close()
