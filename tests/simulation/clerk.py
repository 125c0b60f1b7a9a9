"""The client that names its messages by delay keys, changes them singly and by query, and purges."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from remoting.messages.properties import format_properties
from store.disk.errors import StoreError
from store.put.pending_api import (
    PendingAnswer,
    PendingError,
    PendingName,
    PendingOrder,
    PendingQuery,
    PendingVerb,
    PendingVerdict,
)
from tests.simulation.keyed import Bulk, Note
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.ledger import Sent
    from tests.simulation.world import World

__all__ = ["Clerk"]

KEYS = ("a", "a2", "ключ", " ", "key:x", "k" * 90)
MODES = ("", "reject", "keep", "keep", "replace", "replace", "replace")
LATER_MS = 1 << 40


class Clerk:
    """Asks the desk; its sends go over the first client's connection, so their order is that of their numbers."""

    def __init__(self, world: World) -> None:
        self.world = world

    # ------------------------------------------------------------------------------------------------ sends

    def send(self, dues: list[int], topic: str, queue_id: int, rng: Random) -> None:
        """Send messages with a key each, alone or as a batch."""
        made = [self._message(due_ms, topic, queue_id, rng) for due_ms in dues]
        self.world.send_made(made, topic, queue_id, 0, 0)

    def _message(self, due_ms: int, topic: str, queue_id: int, rng: Random) -> tuple[Sent, str]:
        world = self.world
        ledger, key, mode = world.ledger, rng.choice(KEYS), rng.choice(MODES)
        where = (topic, key)
        over, sure = ledger.desk.over(ledger, where), ledger.desk.sure(ledger, where)
        sent, text = world.message("timed", due_ms, topic, queue_id, rng.choice((0, 10, 60)))
        sent.note = Note(key, mode, over, sure, (world.wall_ms, world.shift_ms))
        values = {"__DELAYKEY": key} | ({"__DELAYKEY_MODE": mode} if mode else {})
        return sent, format_properties(values) + text

    # ------------------------------------------------------------------------------------------------ changes

    def change(self, rng: Random) -> None:
        """Cancel, move, restart, or send now what a key names, or an id."""
        ledger = self.world.ledger
        desk = ledger.desk
        if desk.cancelled and rng.random() < 0.25:
            self._again(rng.choice(list(desk.cancelled)))
            return
        known = [(m.topic, m.note.key) for m in ledger.sent.values() if m.note is not None][-12:]
        if not known:
            return
        where = rng.choice(known)
        verb = rng.choice((PendingVerb.CANCEL, PendingVerb.MOVE, PendingVerb.NOW, PendingVerb.RESTART))
        delay_ms = rng.choice((1, 30, 700, 3000)) if verb is PendingVerb.MOVE else None
        ids = [delay_id for delay_id, one in desk.ids.items() if one.where == where]
        offset = rng.choice(ids[-3:]) if ids and rng.random() < 0.5 else 0
        version = rng.choice((0, 1, 2)) if rng.random() < 0.2 else None
        self.world.commands.append(lambda: self._change(where, verb, offset, delay_ms, version))

    def _change(
        self, where: tuple[str, str], verb: PendingVerb, offset: int, delay_ms: int | None, version: int | None
    ) -> None:
        world = self.world
        ledger, now_ms = world.ledger, world.wall_ms
        desk = ledger.desk
        world.look()
        before = [i for i in desk.sure(ledger, where) if not offset or i == offset]
        over = desk.over(ledger, where)
        due_ms = None if delay_ms is None else now_ms + delay_ms
        span = (now_ms, now_ms + LATER_MS) if verb is PendingVerb.RESTART else ((due_ms or now_ms), (due_ms or now_ms))
        asked = len(desk.asked.get(where, ()))
        touched = desk.asks(ledger, where, verb, span)
        name = PendingName(offset=offset, topic=where[0], key="" if offset else where[1])
        try:
            order = PendingOrder(verb=verb, name=name, due_ms=due_ms, version=version)
            answer = world.plugin.pending.change(order, now_ms)
        except StoreError as error:
            world.tell(f"{verb.value} {where}: {error}")
            return
        for one in touched:
            one.cancel = "" if one.cancel == "maybe" else one.cancel
        if verb is not PendingVerb.CANCEL:
            spans = desk.asked[where]
            del spans[asked:]
            if answer.verdict is PendingVerdict.DONE:
                spans.append((answer.due_ms, answer.due_ms))
        world.look()
        world.tell(f"{verb.value} {where} {offset:#x} version {version}: {answer}")
        if version is not None and answer.verdict is PendingVerdict.DONE:
            got = answer.version - (verb is not PendingVerb.CANCEL)
            if got != version:
                raise Violation(Kind.COMMAND, f"{verb.value} of {where} if it has version {version}: {answer}")
        refused = verb is PendingVerb.RESTART and answer.verdict is PendingVerdict.REFUSED
        if not refused:
            desk.answered(ledger, where, verb, answer, before, over)
        if verb is PendingVerb.RESTART and answer.offset in desk.ids and (refused or _is_done(answer)):
            desk.restarts(ledger, answer, now_ms)

    def _again(self, delay_id: int) -> None:
        """Ask for a cancel that stands."""

        def call() -> None:
            world = self.world
            order = PendingOrder(verb=PendingVerb.CANCEL, name=PendingName(offset=delay_id))
            try:
                answer = world.plugin.pending.change(order, world.wall_ms)
            except StoreError as error:
                world.tell(f"cancel {delay_id:#x} again: {error}")
                return
            world.tell(f"cancel {delay_id:#x} again: {answer}")
            world.ledger.desk.cancelled_again(delay_id, answer, max(world.wall_ms, world.wall_max_ms))

        self.world.commands.append(call)

    # ------------------------------------------------------------------------------------------------ bulk

    def bulk(self, topic: str, rng: Random) -> None:
        """Cancel some more of what matches: go on where the last call has stopped, also if that was before a crash."""
        prefix, limit = rng.choice(("", "", "a")), rng.choice((1, 3, 1000))
        self.world.commands.append(lambda: self._bulk(topic, prefix, limit, False))

    def purge(self, topic: str) -> None:
        """Cancel all that a deleted topic has left."""
        self.world.commands.append(lambda: self._bulk(topic, "", 1000, True))

    def _bulk(self, topic: str, prefix: str, limit: int, purge: bool) -> None:
        world = self.world
        assert world.core is not None
        ledger, desk = world.ledger, world.ledger.desk
        there = world.core.topics.get(topic) is not None
        if purge and there:
            return  # the door refuses it
        world.look()
        if desk.bulk is None or purge:
            desk.bulk = Bulk(topic, prefix, desk.pending_of(ledger, topic, prefix))
        bulk = desk.bulk
        over = frozenset(ledger.delivered)
        touched = desk.bulk_begins(ledger, bulk.topic, bulk.prefix)
        if world.read_fault is not None:
            bulk.whole = False
        query = PendingQuery(topic=bulk.topic, key_prefix=bulk.prefix)
        try:
            found = world.plugin.pending.change_matching(
                query, PendingVerb.CANCEL, world.wall_ms, limit=limit, dry_run=False, after=bulk.cursor
            )
        except (StoreError, PendingError) as error:
            desk.running = None
            world.tell(f"cancel all of {bulk.topic} {bulk.prefix!r}: {error}")
            bulk.whole = False
            return
        world.look()
        ids = [f"{answer.offset:#x}" for answer in found.answers]
        world.tell(f"cancel of {bulk.topic} {bulk.prefix!r} from {bulk.cursor!r} to {found.next!r}: {ids}")
        bulk.cursor = found.next
        if len(found.answers) > limit or any(answer.verdict is not PendingVerdict.DONE for answer in found.answers):
            raise Violation(Kind.ANSWER, f"a cancel of at most {limit} was answered with {found.answers}")
        desk.running = None
        # Not sooner: while this looks, another thread may go on, and all may end there.
        for one, was in touched:
            one.cancel = was if one.cancel == "maybe" else one.cancel
        desk.bulk_answers(ledger, found.answers, over)
        if world.read_fault is not None:
            bulk.whole = False
        if not found.next:
            desk.bulk_is_over(ledger)


def _is_done(answer: PendingAnswer) -> bool:
    return answer.verdict is PendingVerdict.DONE
