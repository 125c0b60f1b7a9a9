"""Replies are told apart by their length, however the bytes come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.generator import rocketmq
from remoting.command import FLAG_RESPONSE, RemotingCommand, encode_command
from remoting.send_reply import encode_send_reply


def refusal(opaque: int) -> bytes:
    return encode_command(RemotingCommand(2, opaque, FLAG_RESPONSE, remark='busy, not "code": 0'))


@given(st.lists(st.booleans(), max_size=12), st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_counts_whole_replies_and_refusals_in_any_pieces(good: list[bool], cuts: list[int]) -> None:
    wire = b"".join(
        encode_send_reply(0, number, "7F" * 16, 0, 10**number, "id") if ok else refusal(number)
        for number, ok in enumerate(good)
    )
    replies = rocketmq.ReplyFrames()
    replies.opaques = []
    answered = refused = at = turn = 0
    while at < len(wire):
        piece = wire[at : at + cuts[turn % len(cuts)]]
        at += len(piece)
        turn += 1
        more, bad = replies.feed(piece)
        answered += more
        refused += bad
    assert (answered, refused) == (len(good), good.count(False))
    assert replies.opaques == [number for number, ok in enumerate(good) if ok]
    assert ("busy" in replies.refusal) == (False in good)
