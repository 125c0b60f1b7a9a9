"""A client's batch whose one element cannot be stored: nothing of it is, and "send it again" makes no second copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import MAX_PROPERTIES_BYTES, join_batch
from store.disk.errors import StoreError
from store.spill.rows.block import Block
from tests.broker.core_rig import START_MS, FakePlugin, Rig, properties, sound

PLACES = [0, 1, 2]
LONG = properties(DELAY=1, A="x" * (MAX_PROPERTIES_BYTES - len("DELAY|1|A||") - 10))


def batch(odd: str, place: int) -> bytes:
    texts = ["", "", ""]
    texts[place] = odd
    return join_batch([(0, b"%d" % n, text) for n, text in enumerate(texts)])


@pytest.fixture
def rig(tmp_path: Path):
    yield from sound(Rig(tmp_path / "store", FakePlugin(), DelayPlugin(), timewheelSegmentBytes=400_000))


@pytest.mark.parametrize("place", PLACES)
def test_a_past_due_element_and_a_clock_that_is_set_back(rig: Rig, place: int) -> None:
    """The element was due when it came; when its turn is stored it is not, and would come early."""
    client = rig.client()
    body = batch(properties(TIMER_DELIVER_MS=START_MS - 5), place)
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    rig.now_ms -= 10
    rig.core.end_turn()
    (reply,) = client.take()
    assert (reply.code, "send it again" in (reply.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    assert client.messages("T") == []
    rig.now_ms += 10
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 0
    assert [message.body for message in client.messages("T")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(properties(REFUSE=1), id="refused by a plug-in"),
        pytest.param(properties(TIMER_DELAY_MS="x"), id="no time"),
        pytest.param(properties(DELAY="x"), id="no level"),
        pytest.param(LONG, id="no room for a level's properties"),
        pytest.param(properties(TRAN_MSG="true"), id="half message"),
    ],
)
def test_an_element_that_is_refused(rig: Rig, odd: str, place: int) -> None:
    client = rig.client()
    for texts in (odd, odd + properties(TAGS="A")):
        fields = client.send_fields("T", m="true")
        reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch(texts, place))
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert (rig.store.put_count, rig.core.pending_count()) == (0, 0)


def test_one_element_now_one_at_a_level_one_later_and_then_a_refusal(rig: Rig) -> None:
    client = rig.client()
    elements = [
        (0, b"now", ""),
        (0, b"level", properties(DELAY=1)),
        (0, b"later", properties(TIMER_DELIVER_MS=START_MS + 60_000)),
        (0, b"past", properties(TIMER_DELIVER_MS=START_MS - 5)),
    ]
    body = join_batch(elements)
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    rig.now_ms -= 10
    rig.core.end_turn()
    assert client.take() == []  # what takes back the part that waits has to be durable first
    rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert (rig.store.put_count, rig.core.pending_count()) == (0, 0)
    rig.now_ms += 10
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 0
    assert (rig.store.put_count, rig.core.pending_count()) == (3, 1)


def test_a_refusal_waits_until_what_was_journalled_before_it_is_cancelled_durably(rig: Rig) -> None:
    """A turn of two frames, of which the second cannot be written: a crash must not bring the first one back."""
    client = rig.client()
    plugin = rig.core.plugins[1]
    assert isinstance(plugin, DelayPlugin)
    spill = plugin.spill
    append, frames = spill.append, 0

    def second_fails(entries: Sequence[tuple[int, int, bytes]]) -> Block:
        nonlocal frames
        frames += 1
        if frames == 2:
            raise StoreError("cannot write")
        return append(entries)

    spill.append = second_fails  # type: ignore[method-assign]
    later = properties(TIMER_DELIVER_MS=START_MS + 60_000)
    body = join_batch([(0, bytes(60_000), later) for _ in range(10)])
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    rig.core.end_turn()
    assert (frames, client.take()) == (2, [])
    assert spill.journal.synced < spill.journal.written
    rig.store.flusher.step(rig.now_ms)
    assert spill.journal.synced == spill.journal.written
    assert [reply.code for reply in client.take()] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert (rig.store.put_count, rig.core.pending_count()) == (0, 0)
    spill.append = append  # type: ignore[method-assign]
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 0
    assert rig.core.pending_count() == 10
