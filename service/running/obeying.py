"""Carries out commands on entries. `service.core.commands` has the rules.

::

    command read ─► where does its entry stand, when is it due? ─► decided ─► verdict written ─► verdict read
                                                                              moved or dropped in the cache ┘

A query on many entries (``ask``: its body is JSON) is a command, too. Its answer is the body of its verdict.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from broker_plugin.rules.properties import DUE_MAX_MS
from remoting.messages.message import StoredMessage
from remoting.pending_rules import past_fault
from service.core.commands import CommandVerdict, Decision
from service.core.lines import Line, LineKind
from service.core.states import OwnerState
from service.link.clock import mono_ms, wall_ms
from service.link.cluster import Fate, fate_of
from service.running.asking import QUESTION_BYTES_MAX, answer_to
from service.running.cache import CachedEntry, LostEntries, ShardCache
from service.running.entries import line_of, own_record
from service.running.instance_counts import InstanceCounts
from service.running.unsure import Unsure, WritingOwner
from store.disk.errors import StoreError, StoreFullError
from timewheel_client.values.errors import ClientError

__all__ = ["Clerk", "Employer"]

AT_ONCE = 256
"""Commands that are looked at together."""
WRITES_MAX = 1024
"""Most verdicts under way. More would wait behind each other until nobody believes in their answers any more."""
EVERY_MS = 200
"""Pause between two looks at the commands that could not be decided."""
ANSWER_BYTES_MAX = 2 << 20
UNPLACED_MAX = 3
"""Commands looked at together of which the broker does not tell the entry's place. With more it is away."""


class Employer(WritingOwner, Protocol):
    """The shard's owner."""

    name: str
    cache: ShardCache | None
    tally: InstanceCounts

    @property
    def is_filled(self) -> bool:
        """True if every entry that was read is in the cache."""
        ...


class Clerk:
    """Gives each command of a shard a verdict. For one event loop."""

    def __init__(self, owner: Employer) -> None:
        self._owner = owner
        self._wake = asyncio.Event()
        self._bodies: dict[int, bytes] = {}
        self._open: set[int] = set()  # commands whose verdict is on its way
        self._stuck: set[int] = set()  # commands that could not be decided when they were looked at
        self._blocked: set[int] = set()  # the origins of their entries: commands on one entry keep their order
        self._again_ms = 0  # when these are looked at again
        self._writes: set[asyncio.Task[None]] = set()
        self.unsure = Unsure(owner)
        self._lost = LostEntries()
        # The last error that stopped only some commands in this step.
        self._trouble: StoreError | ClientError | None = None

    def saw(self, message: StoredMessage, line: Line) -> None:
        """Note that a command, a verdict or a roll was read."""
        if line.kind is LineKind.ASK and line.offset in self._owner.shard.commands.asked:
            self.heard({line.offset: message.body[: QUESTION_BYTES_MAX + 1]})
        self._wake.set()

    def heard(self, questions: Mapping[int, bytes]) -> None:
        """Note the bodies of open questions, by their offsets."""
        self._bodies |= questions
        self._wake.set()

    def drop(self, entries: Sequence[int]) -> None:
        """Have entries removed from the cache that are done, but were not delivered from it."""
        if entries:
            self._owner.shard.commands.gone += entries
            self._wake.set()

    async def step(self) -> None:
        """Do what is possible now: after a command was read, or a pause.

        Raises ClientError, StoreError; TakeoverError if the cache has lost an entry for good.
        """
        shard = self._owner.shard
        table = shard.commands
        busy = table.asked or table.changing or table.gone
        try:
            async with asyncio.timeout(EVERY_MS / 1000 if busy else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._open &= table.asked.keys()
        for offset in self._bodies.keys() - table.asked.keys():
            del self._bodies[offset]
        await self.unsure.settle()
        self._trouble = None
        if self._owner.is_filled:
            await self._apply()
        if shard.state is OwnerState.OWNING and self._owner.is_filled:
            await self._decide()
        if self._trouble is not None:
            raise self._trouble

    def close(self) -> None:
        """End what is under way."""
        for task in self._writes:
            task.cancel()

    async def _apply(self) -> None:
        """Apply verdicts to the cache. An entry for which that fails keeps no command waiting. Raises TakeoverError."""
        cache, table = self._owner.cache, self._owner.shard.commands
        if cache is None:
            return
        gone = list(table.gone)
        if gone:
            kept = await self._drop(cache, gone)
            table.gone[: len(gone)] = kept  # only now: they would be listed until they are due if this is ended
        for entry, due_ms in list(table.changing.items()):
            if self._owner.shard.backfill.lacks(entry):
                continue
            if not self._owner.is_filled:
                return  # it may be among those that the cache does not have yet
            try:
                await asyncio.to_thread(cache.move, entry, due_ms)
            except StoreError as error:
                self._failed_at(entry, error)
                continue
            self._lost.was_read(entry)
            if table.changing.get(entry) == due_ms:
                del table.changing[entry]

    async def _drop(self, cache: ShardCache, gone: Sequence[int]) -> list[int]:
        """Remove entries from the cache, one by one if it cannot find all of them; returns those that remain."""
        try:
            await asyncio.to_thread(cache.drop, gone)
        except StoreFullError as error:
            self._trouble = error
            return list(gone)
        except StoreError as error:
            if len(gone) == 1:
                self._failed_at(gone[0], error)
                return list(gone)
            return [left for offset in gone for left in await self._drop(cache, [offset])]
        for offset in gone:
            self._lost.was_read(offset)
        return []

    def _failed_at(self, entry: int, error: StoreError) -> None:
        self._trouble = error
        self._lost.failed(entry, error, mono_ms())

    # ------------------------------------------------------------------------------------------------ deciding

    async def _decide(self) -> None:
        """Look at all open commands, some at a time: those that cannot be decided now must not keep others waiting."""
        table = self._owner.shard.commands
        begun_ms = mono_ms()
        is_round = begun_ms >= self._again_ms
        if is_round:
            self._again_ms = begun_ms + EVERY_MS
            self._stuck.clear()
            self._blocked.clear()
        lines = [
            line
            for at, line in table.asked.items()
            if at not in self._open and at not in self._stuck and not self._waits(line)
        ]
        for begin in range(0, len(lines), AT_ONCE):
            if len(self._writes) >= WRITES_MAX:
                return  # what is read next wakes this up
            await self._decide_some([line for line in lines[begin : begin + AT_ONCE] if line.offset in table.asked])
        if is_round:
            self._again_ms = max(self._again_ms, mono_ms() + 4 * (mono_ms() - begun_ms))

    def _waits(self, line: Line) -> bool:
        """True if a command is about something that the backfill may bring. A question is about all that waits."""
        backfill = self._owner.shard.backfill
        return not backfill.is_whole if line.kind is LineKind.ASK else backfill.concerns(line.about)

    async def _decide_some(self, lines: Sequence[Line]) -> None:
        cache, table = self._owner.cache, self._owner.shard.commands
        assert cache is not None
        entries = await self._places(lines)
        is_whole = self._owner.is_filled  # else the cache does not have all of them yet, and may once it has answered
        found = await self._look(cache, [-1 if entry is None else entry for entry in entries])
        for line, entry, look in zip(lines, entries, found, strict=True):
            await asyncio.sleep(0)  # as in `_place`
            if line.kind is LineKind.ASK:
                await self._answer(line)
                continue
            origin = table.origin_of(line.about if entry is None else entry)
            if (
                entry is None
                or isinstance(look, StoreError)
                or (look is None and not is_whole)
                or origin in self._blocked
                or not await self._judge(line, entry, look)
            ):
                self._stuck.add(line.offset)
                self._blocked.add(origin)

    async def _places(self, lines: Sequence[Line]) -> list[int | None]:
        """The places of their entries; None for one that the broker does not tell. Raises ClientError if it is away."""
        entries: list[int | None] = []
        for line in lines:
            try:
                entries.append(await self._place(line))
            except ClientError as error:
                self._trouble = error
                entries.append(None)
                if entries.count(None) > UNPLACED_MAX:
                    raise
        return entries

    async def _look(self, cache: ShardCache, entries: Sequence[int]) -> list[CachedEntry | StoreError | None]:
        """Those of the entries that wait, one by one if the cache cannot find all of them."""
        found: list[CachedEntry | StoreError | None]
        try:
            found = [*await asyncio.to_thread(cache.look, entries)]
        except StoreError as error:
            if len(entries) == 1:
                self._failed_at(entries[0], error)
                return [error]
            return [look for entry in entries for look in await self._look(cache, [entry])]
        for entry, look in zip(entries, found, strict=True):
            if look is not None or entry in self._owner.shard.done:
                self._lost.was_read(entry)
        return found

    async def _place(self, line: Line) -> int:
        """The present offset of the entry that a command is about; -1 if there is none."""
        shard = self._owner.shard
        about = line.about
        if line.kind is LineKind.ASK:
            return -1
        if not 0 <= about < line.offset:
            return -1  # also if a roll stands there by now: the command cannot have meant it
        if about not in shard.done:  # what was rolled is done, so its place need not be looked for
            return -1 if about in shard.commands.asked else about
        place = shard.commands.place_of(about)
        await asyncio.sleep(0)  # it goes through all rolls of the shard, which takes 45 ms for a million
        if place != about or about in shard.commands.cancelled:
            return place
        pull = await self._owner.cluster.pull(self._owner.queue, about, wait=False)
        if pull.moved or not pull.messages or pull.messages[0].queue_offset != about:
            return -1
        found = line_of(pull.messages[0])
        if found.kind is LineKind.ROLL:
            return shard.commands.place_of(found.entry)
        return about if found.kind is LineKind.ENTRY else -1

    async def _judge(self, line: Line, entry: int, look: CachedEntry | None) -> bool:
        """Decide and write the verdict; False if it cannot be decided now.

        A roll may have been read since the place of the entry was looked up: then the entry is done, and waits at its
        new place, which the cache may not have yet.
        """
        shard = self._owner.shard
        if (entry in shard.done and shard.commands.is_rolled(entry)) or (look is None and not self._owner.is_filled):
            return False
        decision = shard.decide(line.offset, entry, look.due_ms if look else 0)
        if decision is None:
            return False
        due_ms, detail = look.due_ms if look else 0, ""
        if decision.verdict is CommandVerdict.DONE:
            verdict, due_ms, detail = _outcome(line, due_ms, wall_ms())
            if look is None and line.kind is not LineKind.CANCEL:
                if not (shard.takeovers.was_unreadable(entry, entry + 1) or shard.backfill.is_missing(entry)):
                    shard.roll_failed(entry)
                    self._failed_at(entry, StoreError(f"entry {entry} is not in the cache"))
                    return False
                verdict, detail = CommandVerdict.UNKNOWN, "the entry cannot be read"
            if verdict is not CommandVerdict.DONE:
                shard.roll_failed(entry)
                decision = Decision(line.offset, entry, verdict)
        await self._write(line, decision, due_ms, detail)
        return True

    async def _answer(self, line: Line) -> None:
        cache = self._owner.cache
        assert cache is not None
        body = self._bodies.get(line.offset, b"")
        answer = await asyncio.to_thread(answer_to, body, cache.plugin.pending, self._owner.name, wall_ms())
        text = json.dumps(answer, separators=(",", ":")).encode()
        if len(text) > ANSWER_BYTES_MAX:
            text = b'{"error":"the answer is too long: ask for less at once"}'
        await self._write(line, Decision(line.offset, -1, CommandVerdict.DONE), 1, "", text)

    async def _write(self, line: Line, decision: Decision, due_ms: int, detail: str, body: bytes = b"") -> None:
        owner = self._owner
        verdict = decision.verdict.value
        fields = {
            "TW_GENERATION": owner.shard.generation,
            "TW_ABOUT": line.offset,
            "TW_ENTRY": decision.entry,
            "TW_VERDICT": verdict,
            "TW_DELIVER_MS": due_ms,
            "TW_DETAIL": detail,
        }
        origin = owner.shard.commands.origin_of(decision.entry)
        if origin != decision.entry:
            fields["TW_ORIGIN"] = origin
        try:
            connection = await owner.cluster.connection(owner.queue[0], owner.queue[1])
            text, own = own_record(LineKind.VERDICT, **fields)
            reply = owner.cluster.send_now(connection, owner.queue, text, body or own)
        except ClientError:
            self._failed(decision)
            raise
        self._open.add(line.offset)
        owner.tally.verdicts[line.kind.value, verdict] += 1

        async def written() -> None:
            sent = await fate_of(reply)
            if sent.fate is Fate.REFUSED:
                self._failed(decision)
            elif sent.fate is Fate.UNKNOWN:
                self.unsure.add(partial(self._failed, decision))

        task = asyncio.ensure_future(written())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    def _failed(self, decision: Decision) -> None:
        """A verdict was not stored, or was read meanwhile: decide again if the command is still open."""
        if decision.verdict is CommandVerdict.DONE and decision.command in self._owner.shard.commands.asked:
            self._owner.shard.roll_failed(decision.entry)
        self._open.discard(decision.command)


def _outcome(line: Line, due_ms: int, now_ms: int) -> tuple[CommandVerdict, int, str]:
    """The effect of a command on an entry that waits: verdict, due time (0: none), and the reason of a refusal.

    >>> _outcome(Line(9, LineKind.MOVE, due_ms=500), 700, 100)
    (<CommandVerdict.DONE: 'done'>, 500, '')
    >>> _outcome(Line(9, LineKind.MOVE, by_ms=-1000), 700, 100)[1]
    100
    >>> _outcome(Line(9, LineKind.MOVE, by_ms=-2000), 700, 100)[2]
    'due=-1300 lies 1400 ms in the past: to have it delivered now, the verb is now'
    """
    if line.kind is LineKind.CANCEL:
        return CommandVerdict.DONE, 0, ""
    wanted_ms = due_ms + line.by_ms if line.by_ms else line.due_ms
    if wanted_ms < 0 and not line.by_ms:
        return CommandVerdict.REFUSED, due_ms, "move takes TW_DELIVER_MS (epoch ms) or TW_BY_MS (ms)"
    past = past_fault("due", wanted_ms, now_ms) if line.by_ms else ""
    if past:
        return CommandVerdict.REFUSED, due_ms, past
    if wanted_ms > DUE_MAX_MS:
        return CommandVerdict.REFUSED, due_ms, "its due time would lie beyond the year 9999"
    wanted_ms = max(wanted_ms, now_ms)
    if wanted_ms == due_ms or (wanted_ms == now_ms and due_ms <= now_ms):
        return CommandVerdict.ALREADY, due_ms, ""
    return CommandVerdict.DONE, wanted_ms, ""
