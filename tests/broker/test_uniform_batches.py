"""Batches as columns: the same bytes, entries, keys and replies as message by message, for any batch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.net.channel import MemoryChannel
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import UniformBatch, join_batch
from store.disk.errors import StoreError
from store.put.plugin_api import HeldBatch, OneByOne, PutStatus
from tests.broker.core_rig import START_MS, Client, FakePlugin, Rig, properties
from tests.support.examples import examples

SIZES = {"mappedFileSizeCommitLog": 9000, "timewheelSegmentBytes": 20_000, "maxMessageSize": 8000}
WIDE = SIZES | {"mappedFileSizeCommitLog": 200_000, "timewheelSegmentBytes": 200_000, "maxMessageSize": 80_000}
NAMES = ("UNIQ_KEY", "WAIT", "TAGS", "KEYS", "user", "имя", "XDELAY", "A__TW_B")
TIMERS = ("__STARTDELIVERTIME", "TIMER_DELIVER_MS")
ODD_NAMES = (
    "CLUSTER",
    "MSG_REGION",
    "DELAY",
    "TRAN_MSG",
    "TRACE_ON",
    "POP_CK",
    "__TW_ID",
    "__TW_LEVEL",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
)
PLAIN = ("a", "k1 k2", " k  k", "ключ", "x\x01y", "TRACE_ON", "DELAY\x013", "__TW_ID", "18", "true", "TIMER_DELAY_MS")
DUES = (*(str(START_MS + ms) for ms in (1, 5, 86_400_000, 9_000_000_000)), f"00{START_MS + 7}")
BAD_DUES = ("", "-5", "+5", "5e3", "٣", "0", str(START_MS), "9" * 18, "9" * 19, "9" * 25, str(START_MS - 1))
BAD_DUES += ("5,6", "[5]", "5.0", "true", f"{START_MS}000e-3", "0" * 30 + "5")  # numbers as JSON has them, or nearly


class MessagesOnly(FakePlugin):
    """A plug-in of somebody else, who knows of messages only: with it, batches go message by message."""

    name = "messages-only"


ODDITIES = ("a name", "a due time", "the order", "a byte", "the end", "a value", "a name twice")


def value_of(draw: st.DrawFn, name: str, odd: set[str]) -> str:
    if name in TIMERS:
        return draw(st.sampled_from(DUES + BAD_DUES if "a due time" in odd else DUES))
    if "a value" in odd and draw(st.booleans()):
        return ""
    return draw(st.sampled_from(PLAIN))


def element(draw: st.DrawFn, names: list[str], end: str, odd: set[str]) -> bytes:
    if "the order" in odd:
        names = draw(st.permutations(names))
    text = "\x02".join(f"{name}\x01{value_of(draw, name, odd)}" for name in names)
    if text:
        text += draw(st.sampled_from(("\x02", "", "\x02\x02", "\x02broken"))) if "the end" in odd else end
    raw = text.encode()
    body = draw(st.sampled_from((b"", b"body", b"x" * 300)))
    return (
        pack(">iiiii", 7, 8, 9, draw(st.integers(-(2**31), 2**31 - 1)), len(body)) + body + pack(">h", len(raw)) + raw
    )


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """The body of one batch: of one make, or with something odd in it."""
    odd = set(draw(st.lists(st.sampled_from(ODDITIES), max_size=2)) if draw(st.booleans()) else [])
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    if "a due time" in odd or draw(st.booleans()):
        names.insert(draw(st.integers(0, len(names))), draw(st.sampled_from(TIMERS)))
    if "a name" in odd:
        names.insert(draw(st.integers(0, len(names))), draw(st.sampled_from(ODD_NAMES)))
    if "a name twice" in odd:
        names.append(draw(st.sampled_from((*names, *TIMERS))))
    end = draw(st.sampled_from(("\x02", "")))
    body = b"".join(element(draw, names, end, odd) for _ in range(draw(st.integers(1, 6))))
    if "a byte" in odd:
        at = max(0, len(body) - draw(st.integers(1, 30)))
        body = body[:at] + draw(st.sampled_from((b"", b"\0", b"\x02", b"\xff", b"\x01"))) + body[at + 1 :]
    return body


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[dict[str, Any], bytes, bool]]:
    """What is sent in one turn: (header fields that differ from the usual, body, whether it is a batch)."""
    sends = []
    for _ in range(draw(st.integers(1, 4))):
        odd = draw(st.integers(0, 3)) == 0
        fields: dict[str, Any] = {"b": draw(st.sampled_from(("T", "U", "L" * 120))), "e": draw(st.sampled_from((0, 1)))}
        if odd:
            fields |= {
                "b": draw(st.sampled_from(("T", "%RETRY%g"))),
                "e": draw(st.sampled_from((0, 99))),
                "f": draw(st.sampled_from((0, 1, 0x30, 4, 8, 12, 0x40))),
                "g": draw(st.sampled_from((5, START_MS, 2**63 - 1))),
                "j": draw(st.sampled_from((0, 3, 2**31))),
            }
        batch = draw(st.integers(0, 4)) > 0
        fields["i"] = properties(UNIQ_KEY="of-all") if not batch or draw(st.booleans()) else ""
        sends.append((fields, draw(batches()) if batch else b"single", batch))
    return sends


class Pair:
    """Two brokers over copies of one directory: one takes batches as columns, the other message by message."""

    def __init__(self, seed: Path, v6: bool, sizes: dict[str, int] = SIZES) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="uniform-"))
        self.rigs: list[Rig] = []
        self.clients: list[Client] = []
        for name, plugins in (("columns", [DelayPlugin()]), ("messages", [MessagesOnly(), DelayPlugin()])):
            shutil.copytree(seed, self.root / name)
            rig = Rig(self.root / name, *plugins, **sizes)
            client = rig.client()
            if v6:
                client.channel = MemoryChannel(("2001:db8::7", 50001))
            self.rigs.append(rig)
            self.clients.append(client)

    def send(self, sends: list[tuple[dict[str, Any], bytes, bool]]) -> None:
        replies = []
        for rig, client in zip(self.rigs, self.clients, strict=True):
            for number, (fields, body, batch) in enumerate(sends):
                code = RequestCode.SEND_BATCH_MESSAGE if batch and number % 2 else RequestCode.SEND_MESSAGE_V2
                ext = client.send_fields("T", **fields, m="true" if batch else "false")
                client.submit(code, ext, body)
            rig.core.end_turn()
            replies.append([(reply.opaque, reply.code, reply.remark, reply.ext) for reply in client.take()])
        assert replies[0] == replies[1]

    def check(self) -> None:
        columns, messages = (self.state(rig) for rig in self.rigs)
        for what, found in columns.items():
            assert found == messages[what], what
        assert [rig.store.check() for rig in self.rigs] == [[], []]

    @staticmethod
    def state(rig: Rig) -> dict[str, Any]:
        store, delay = rig.store, rig.core.plugins[-1]
        assert isinstance(delay, DelayPlugin)
        journal = store.root / "timewheel" / "delay" / "journal"
        delay.sweeper.publish_all()
        return {
            "records": list(store.scan(0)),
            "queues": {(q.topic, q.queue_id): (q.next, q.count, bytes(q.buffer)) for q in store.queues},
            "keys": bytes(store.index._pending),
            "journal": [(path.name, path.read_bytes()) for path in sorted(journal.iterdir())],
            "pending": [(m.offset, m.due_ms, m.topic, m.size) for m in delay.list_pending(None, 1000)],
            "counts": (store.put_count, store.put_bytes, rig.core.turn.put_count, delay.stats.accepted),
            "last": store._last,
        }

    def close(self) -> None:
        for rig in self.rigs:
            rig.close()
        shutil.rmtree(self.root)


@pytest.fixture(scope="module")
def wide_seed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for larger files."""
    root = tmp_path_factory.mktemp("seed") / "store"
    Rig(root, DelayPlugin(), **WIDE).close()
    yield root


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which two brokers have the same store id and give the same delay ids."""
    root = tmp_path_factory.mktemp("seed") / "store"
    Rig(root, DelayPlugin(), **SIZES).close()
    yield root


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(turns(), st.booleans()), min_size=1, max_size=4), st.booleans())
def test_columns_and_messages_come_to_the_same(seed: Path, sent: list[Any], v6: bool) -> None:
    pair = Pair(seed, v6)
    try:
        for sends, full in sent:
            for rig in pair.rigs:
                status = PutStatus.SERVICE_NOT_AVAILABLE if full and len(sent) > 2 else PutStatus.PUT_OK
                rig.store.retention.disk_status = status
                rig.now_ms += 1
            pair.send(sends)
        pair.check()
    finally:
        pair.close()


def batch_of(*texts: str | bytes) -> bytes:
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(pack(">iiiii", 0, 0, 0, 1, 4) + b"body" + pack(">h", len(text)) + text for text in raw)


LONG = "v" * 32_600
ODD_BATCHES = {
    **{name: batch_of(f"{name}\x013\x02", f"{name}\x014\x02") for name in ODD_NAMES},
    **{
        f"{name} with {timer}": batch_of(*[f"{timer}\x01{DUES[2]}\x02{name}\x01{value}\x02" for value in (1, 2)])
        for name in (*ODD_NAMES, *TIMERS)
        for timer in TIMERS
    },
    **{
        f"{timer} {due[:30]!r}": batch_of(f"{timer}\x01{DUES[2]}\x02", f"{timer}\x01{due}\x02")
        for due in BAD_DUES
        for timer in TIMERS
    },
    "another name": batch_of("a\x011\x02TAGS\x012\x02", "a\x011\x02TAG\x012\x02"),
    "another order": batch_of("a\x011\x02KEYS\x012\x02", "KEYS\x011\x02a\x012\x02"),
    "three and one": batch_of("a\x011\x02KEYS\x012\x02a\x013\x02", "KEYS\x014\x02"),
    "a separator in front": batch_of("a\x011", "\x02a\x012\x02"),
    "no UTF-8": batch_of(b"a\x01\xff\x02", b"a\x01b\x02"),
    "cut between two": batch_of(b"KEYS\x01\xc3\x02", b"KEYS\x01\xa9\x02"),
    "a key of no topic": batch_of("UNIQ_KEY\x01\0a\x02", "UNIQ_KEY\x01\0b\x02"),
    "no value": batch_of("UNIQ_KEY\x01\x02TAGS\x01\x02KEYS\x01 \x02", "UNIQ_KEY\x01u\x02TAGS\x01t\x02KEYS\x01k\x02"),
    "long": batch_of(f"a\x01{LONG}\x02"),
    "too long with a stamp": batch_of(f"TIMER_DELIVER_MS\x01{DUES[2]}\x02a\x01{LONG}\x02"),
    "nothing": b"",
    "cut off": batch_of("a\x011\x02")[:-1],
}


@pytest.mark.parametrize("sys_flag", [0, 4, 8, 12, 0x40])
def test_what_is_odd_comes_to_the_same(wide_seed: Path, sys_flag: int) -> None:
    pair = Pair(wide_seed, False, WIDE)
    for body in ODD_BATCHES.values():
        pair.send([({"f": sys_flag, "i": ""}, body, True), ({"e": 1, "i": ""}, body, True)])
    timed = batch_of(*[f"__STARTDELIVERTIME\x01{due}\x02" for due in DUES[1:]])
    for number in (0, 2**31):
        pair.send([({"j": number, "i": ""}, timed, True)])
    pair.check()
    pair.close()


# ------------------------------------------------------------------------------------------------ the joint


class Columns(FakePlugin):
    """Sees batches as columns, and holds those of a certain make."""

    name = "columns"

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, ...]] = []

    def before_put_batch(self, batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        self.batches.append(batch.names)
        if "ASK" in batch.names:
            return OneByOne()
        if "HOLD" in batch.names:
            self.held += range(1 << 62, (1 << 62) + len(batch))
            return HeldBatch(range(1 << 62, (1 << 62) + len(batch)), now_ms + 1000)
        return None


def send(rig: Rig, *texts: str) -> Any:
    client = rig.client()
    body = join_batch([(0, b"%d" % number, text) for number, text in enumerate(texts)])
    return client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)


def test_a_plug_in_may_look_at_a_batch_as_a_whole(tmp_path: Path) -> None:
    plugin = Columns()
    rig = Rig(tmp_path / "store", plugin)
    assert send(rig, properties(a=1), properties(a=2)).code == 0
    assert (plugin.batches, plugin.seen) == ([("a",)], [])
    reply = send(rig, properties(HOLD=1), properties(HOLD=2))
    assert [text[-16:] for text in reply.ext["msgId"].split(",")] == ["4000000000000000", "4000000000000001"]
    assert plugin.committed == [1 << 62, (1 << 62) + 1] and plugin.seen == []
    assert send(rig, properties(ASK=1), properties(ASK=2)).code == 0
    assert len(plugin.seen) == 2
    assert [message.body for message in rig.client().messages("T")] == [b"0", b"1", b"0", b"1"]
    rig.close()


def test_one_plug_in_that_knows_only_messages_is_asked_about_each(tmp_path: Path) -> None:
    columns, messages = Columns(), MessagesOnly()
    rig = Rig(tmp_path / "store", columns, messages)
    assert send(rig, properties(a=1), properties(a=2)).code == 0
    assert columns.batches == []
    assert [len(columns.seen), len(messages.seen)] == [2, 2]
    assert send(rig, properties(a=1), properties(REFUSE=2)).code == 13
    assert [message.body for message in rig.client().messages("T")] == [b"0", b"1"]
    rig.close()


def test_a_plug_in_that_fails_refuses_what_it_held_of_a_batch(tmp_path: Path) -> None:
    plugin = Columns()
    rig = Rig(tmp_path / "store", plugin)
    plugin.error = StoreError("planted")
    assert send(rig, properties(HOLD=1), properties(HOLD=2)).code == 14
    assert send(rig, properties(a=1), properties(a=2)).code == 0
    rig.close()


@pytest.mark.parametrize("text", [properties(UNIQ_KEY="u"), properties(TIMER_DELIVER_MS=START_MS + 9)])
def test_a_batch_waits_for_its_sync(tmp_path: Path, text: str) -> None:
    rig = Rig(tmp_path / "store", DelayPlugin(), flushDiskType="SYNC_FLUSH")
    client = rig.client()
    body = join_batch([(0, b"1", text), (0, b"2", text)])
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    rig.core.end_turn()
    assert client.take() == []
    rig.store.flusher.step(rig.now_ms)
    rig.core.end_turn()
    (reply,) = client.take()
    assert reply.code == 0 and reply.ext["msgId"].count(",") == 1
    rig.close()
