"""Any mixture of sends in any turns, with a store and a plug-in that fail now and then, against a stupid model.

Every request that wants a reply gets exactly one. What was answered with success is stored (or held) once; what was
refused is not; a batch is stored as a whole or not at all.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remoting.codes import FLAG_ONEWAY, RequestCode
from remoting.messages.message import join_batch, parse_message_id
from store.disk.errors import StoreError
from store.put.plugin_api import PutStatus
from tests.broker.core_rig import FakePlugin, Rig, properties
from tests.support.examples import examples

TEXTS = {
    "plain": "",
    "keys": properties(KEYS="k1 k2", TAGS="A"),
    "held": properties(HOLD=1),
    "refused": properties(REFUSE=1),
    "half": properties(TRAN_MSG="true"),
    "level": properties(DELAY=18),
}
kinds = st.sampled_from(sorted(TEXTS))


class Turns(RuleBasedStateMachine):
    """Gathers requests, ends turns, breaks things."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="turns-"))
        self.plugin = FakePlugin()
        self.rig = Rig(self.root / "store", self.plugin)
        self.clients = [self.rig.client(50001), self.rig.client(50002)]
        self.number = 0
        self.waiting: dict[tuple[int, int], list[tuple[str, bytes]]] = {}
        self.quiet: list[list[tuple[str, bytes]]] = []
        self.stored: list[bytes] = []
        self.levels = self.halves = 0
        self.full = self.broken = False

    def submit(
        self, who: int, code: int, elements: list[tuple[str, bytes]], body: bytes, oneway: bool, **fields
    ) -> None:
        client = self.clients[who]
        fields = client.send_fields("T", **fields)
        opaque = client.submit(code, fields, body, FLAG_ONEWAY if oneway else 0)
        if oneway:
            self.quiet.append(elements)
        else:
            self.waiting[who, opaque] = elements

    def next_body(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    @rule(who=st.integers(0, 1), kind=kinds, oneway=st.booleans())
    def send(self, who, kind, oneway):
        body = self.next_body()
        self.submit(who, RequestCode.SEND_MESSAGE_V2, [(kind, body)], body, oneway, i=TEXTS[kind])

    @rule(who=st.integers(0, 1), parts=st.lists(kinds, min_size=1, max_size=4), oneway=st.booleans())
    def send_batch(self, who, parts, oneway):
        bodies = [self.next_body() for _ in parts]
        body = join_batch([(0, text, TEXTS[kind]) for kind, text in zip(parts, bodies, strict=True)])
        elements = [
            (f"{kind} in a batch" if kind == "half" else kind, text) for kind, text in zip(parts, bodies, strict=True)
        ]
        self.submit(who, RequestCode.SEND_BATCH_MESSAGE, elements, body, oneway, m="true")

    @rule(full=st.booleans())
    def fill_disk(self, full):
        self.full = full
        retention = self.rig.store.retention
        retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE if full else PutStatus.PUT_OK

    @rule(broken=st.booleans())
    def break_plugin(self, broken):
        self.broken = broken
        self.plugin.error = StoreError("planted") if broken else None

    @rule()
    def end_turn(self):
        held_before = len(self.plugin.committed)
        self.rig.core.end_turn()
        held = 0
        for who, client in enumerate(self.clients):
            for reply in client.take():
                elements = self.waiting.pop((who, reply.opaque))
                accepted = self.accepted(elements)
                assert (reply.code == 0) == accepted, (elements, reply)
                if accepted:
                    held += self.note(elements)
                    ids = [parse_message_id(text)[1] for text in reply.ext["msgId"].split(",")]
                    assert [offset >= 1 << 62 for offset in ids] == [kind == "held" for kind, _ in elements]
        assert not self.waiting, "somebody got no reply"
        for elements in self.quiet:
            if self.accepted(elements):
                held += self.note(elements)
        self.quiet.clear()
        if not self.broken:
            assert len(self.plugin.committed) - held_before == held

    def accepted(self, elements: list[tuple[str, bytes]]) -> bool:
        kinds_of = {kind for kind, _ in elements}
        if kinds_of & {"refused", "half in a batch"} or (self.broken and "held" in kinds_of):
            return False
        return not (self.full and kinds_of - {"held"})

    def note(self, elements: list[tuple[str, bytes]]) -> int:
        self.stored += [body for kind, body in elements if kind in ("plain", "keys")]
        self.levels += sum(kind == "level" for kind, _ in elements)
        self.halves += sum(kind == "half" for kind, _ in elements)
        return sum(kind == "held" for kind, _ in elements)

    @invariant()
    def what_is_stored_is_what_was_accepted(self):
        if not self.waiting and not self.quiet:
            bodies = [message.body for message in self.clients[0].messages("T")]
            assert sorted(bodies) == sorted(self.stored)
            assert self.rig.store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == self.levels
            assert self.rig.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == self.halves
            assert list(self.rig.core.halves.undecided) == list(range(self.halves))
            assert self.plugin.held == []

    def teardown(self):
        self.fill_disk(False)
        self.rig.close()
        shutil.rmtree(self.root)


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
