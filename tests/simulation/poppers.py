"""Clients that pop in the simulation: they ask, acknowledge one by one or many at once, change, and tell the ledger."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RecordError
from remoting.json_dialect import dumps
from tests.broker.pop_client import Popped, popped_of
from tests.simulation.kinds import Kind, Violation
from tests.simulation.ordered import ORDERED
from tests.simulation.pops import Pops, number_of, retry_of

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["INVISIBLE_MAX_MS", "VERBS", "Poppers"]

INVISIBLE_MAX_MS = 60_000
VERBS = ("pop", "ack", "acks", "change")
"""What the kinds of their requests begin with; the group comes next, then handles."""
_TIMES = (1, 40, 300, 300, 900, 2500, INVISIBLE_MAX_MS)
_RECENT = 40
_MANY = 8
_NOT_WRITTEN = "a restart may undo this"
"""How the error begins that an acknowledgement gets whose journal cannot be written."""


class Poppers:
    """The clients of one group, which always pops in order if it is `ORDERED`."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group
        self.got: list[tuple[int, Popped]] = []

    @property
    def pops(self) -> Pops:
        """What the ledger knows of the group."""
        ledger = self.world.ledger
        return ledger.ordered if self.group == ORDERED else ledger.pops

    def opened(self) -> None:
        """A broker has started: what the power took is not named any more by handles of the same time or later.

        Its offset is given again. The broker's pop times begin behind the time of its start, so that no handle of
        before names what it gives; here the clock may stand still, or be set back, over a start.
        """
        pops, now_ms = self.pops, self.world.wall_ms
        self.got = [
            (number, one)
            for number, one in self.got
            if not pops.of(number).loose or int(one.handle.split(" ")[1]) <= now_ms
        ]

    # ------------------------------------------------------------------------------------------------ requests

    def pop(self, topic: str, rng: Random, count: int = 0) -> None:
        """Pop something."""
        fields: dict[str, Any] = {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": count or rng.choice((1, 2, 4, 32)),
            "invisibleTime": rng.choice(_TIMES),
            "pollTime": 0,
            "bornTime": self.world.wall_ms + 86_400_000,  # the clock may be set before it is read
            "initMode": 0,
            "order": str(self.group == ORDERED).lower(),
        }
        self.world.submit(RequestCode.POP_MESSAGE, fields, b"", [], f"pop {self.group} ")

    def answer(self, rng: Random) -> None:
        """Acknowledge some of what was got, now or long ago; have some of it longer, or shorter."""
        if not self.got:
            return
        many = self.world.swarm.batch_acks
        if many and rng.random() < many:
            recent = self.got[-rng.randint(1, min(len(self.got), _RECENT)) :]
            self.ack_many(recent[: rng.randint(1, _MANY)])
            return
        number, one = self.got[-rng.randint(1, min(len(self.got), _RECENT))]
        self.ack(number, one) if rng.random() < 0.7 else self.change(number, one, rng.choice((0, *_TIMES)))

    def ack(self, number: int, one: Popped) -> None:
        """Acknowledge a message."""
        self.pops.of(number).asked += 1
        self.world.tell(f"ack {number} [{one.handle}]")
        kind = f"ack {self.group} {one.handle}"
        self.world.submit(RequestCode.ACK_MESSAGE, self._named(one), b"", [number], kind)

    def ack_many(self, ones: Sequence[tuple[int, Popped]]) -> None:
        """Acknowledge several messages by one request, with an entry for each pop of each queue."""
        entries: dict[tuple[str, int, str], int] = {}
        for number, one in ones:
            self.pops.of(number).asked += 1
            lead = one.handle.rpartition(" ")[0]
            key = one.topic, one.queue_id, lead
            entries[key] = entries.get(key, 0) | 1 << one.offset - int(lead.partition(" ")[0])
        acks = []
        for (topic, queue_id, lead), bits in entries.items():
            start, pop_ms, invisible_ms, revive_qid, retry = lead.split(" ")[:5]
            named = {"c": self.group, "t": retry_of(topic) or topic, "r": retry, "q": queue_id, "so": int(start)}
            timed = {"rq": int(revive_qid), "pt": int(pop_ms), "it": int(invisible_ms)}
            raw = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
            acks.append({**named, **timed, "b": b64encode(raw).decode()})
        self.world.tell(f"ack together {[(number, one.handle) for number, one in ones]}")
        kind = f"acks {self.group} {';'.join(one.handle for _, one in ones)}"
        body = dumps({"brokerName": "broker-a", "acks": acks})
        self.world.submit(RequestCode.BATCH_ACK_MESSAGE, {}, body, [number for number, _ in ones], kind)

    def change(self, number: int, one: Popped, invisible_ms: int) -> None:
        """Have it for another time from now on."""
        self.pops.changing(number, one.handle)
        self.world.tell(f"change {number} [{one.handle}] to {invisible_ms} ms")
        fields = {**self._named(one), "invisibleTime": invisible_ms}
        kind = f"change {self.group} {one.handle}"
        self.world.submit(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, b"", [number], kind)

    def _named(self, one: Popped) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": one.topic,
            "queueId": one.queue_id,
            "offset": one.offset,
            "extraInfo": one.handle,
        }

    # ------------------------------------------------------------------------------------------------ replies

    def heard(self, verb: str, handles: str, numbers: list[int], reply: RemotingCommand) -> None:
        """One of these was answered."""
        world = self.world
        ends = world.core.processors.pop.journal.written, world.store.commit_log.end  # type: ignore[union-attr]
        world.look()
        if verb == "pop":
            if reply.code == ResponseCode.SUCCESS:
                self._popped(reply, ends)
            return
        more = f"{reply.ext} " if verb == "change" else ""
        named = numbers if verb == "acks" else numbers[0]
        world.tell(f"reply to {verb} {named}: {reply.code} {more}{reply.remark or ''}")
        if verb == "ack":
            gone = numbers[0] in self._gone(numbers)
            self.pops.acked(numbers[0], handles, reply, world.wall_ms, ends, gone=gone)
        elif verb == "acks":
            self._acked_many(handles.split(";"), numbers, reply, ends)
        else:
            self._changed(numbers[0], handles, reply, ends)

    def _gone(self, numbers: Iterable[int]) -> set[int]:
        """Those that retention has taken, or that went with their topic: that may be answered before a pop of it is."""
        ledger = self.world.ledger
        found = set()
        for number in numbers:
            entry = ledger.delivered.get(number)
            deleted = ledger.deleted.get(ledger.sent[number].topic, 0)
            if entry is not None and entry.offset < max(ledger.begin, deleted):
                found.add(number)
        return found

    def _popped(self, reply: RemotingCommand, ends: tuple[int, int]) -> None:
        world, pops = self.world, self.pops
        until_ms = int(reply.ext["popTime"]) + int(reply.ext["invisibleTime"])
        try:
            got = popped_of(reply, self.group)
        except RecordError as error:
            raise Violation(Kind.CONTENT, f"what was popped is no whole record: {error}") from error
        found = [(number_of(one), one) for one in got]
        world.tell(f"popped until {until_ms}: {[(number, one.handle) for number, one in found]}")
        pops.popped(got, until_ms, world.wall_ms, ends, self._gone({*pops.held, *(number for number, _ in found)}))
        self.got += found
        world.wakes["reviver"] = 0

    def _acked_many(
        self, handles: list[str], numbers: list[int], reply: RemotingCommand, ends: tuple[int, int]
    ) -> None:
        good, gone = reply.code == ResponseCode.SUCCESS, self._gone(numbers)
        if not good and not (reply.remark or "").startswith(_NOT_WRITTEN):
            raise Violation(Kind.ANSWER, f"messages {numbers} cannot be acknowledged together: {reply.remark}")
        for number, handle in zip(numbers, handles, strict=True):
            self.pops.batch_acked(number, handle, good, self.world.wall_ms, ends, gone=number in gone)

    def _changed(self, number: int, handle: str, reply: RemotingCommand, ends: tuple[int, int]) -> None:
        pops, ext = self.pops, reply.ext
        if reply.code != ResponseCode.SUCCESS:
            pops.changed(number, handle, "", 0, ends)
            return
        # A handle does not name its topic: two pops of one millisecond may give the same text.
        (one,) = [one for known, one in self.got if (known, one.handle) == (number, handle)][-1:]
        parts = handle.split(" ")
        parts[:4] = [str(one.offset), ext["popTime"], ext["invisibleTime"], ext["reviveQid"]]
        changed = Popped(**{**one.__dict__, "handle": " ".join(parts)})
        until_ms = int(ext["popTime"]) + int(ext["invisibleTime"])
        pops.changed(number, handle, changed.handle, until_ms, ends)
        self.got.append((number, changed))
        self.world.wakes["reviver"] = 0
