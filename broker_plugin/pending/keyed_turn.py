"""The messages with a delay key of one turn of the network loop: their rows, and the replacements among them.

A message that replaces another is journalled as a move of it: the same id, the next version, another body. That is one
frame, so a crash leaves one or the other. If the first was delivered between the check and the end of the turn, the
second is accepted under an id of its own.

If the turn fails after a replacement was journalled, or its batch is refused after that, the replaced message is put
back as it was at that moment. (A turn may replace a message several times, and a command may have moved it since the
check.) The refusal waits until that is durable, however often it must be tried (`broker_plugin.pending.put_backs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_plugin.pending.delay_keys import UNKNOWN_VERSION, DelayKeys, FirstStays, Taken
from broker_plugin.pending.put_backs import PutBacks
from broker_plugin.pending.records import fresh_copy, restamped, sent_delay_ms, with_delay
from remoting.messages.message import record_fields
from store.disk.errors import StoreError
from store.disk.ticket import Ticket
from store.put.plugin_api import Held, PutStatus, Refused
from store.spill.rows.model import Found

if TYPE_CHECKING:
    from broker_plugin.pending.parts import Delivery
    from store.spill.rows.block import Block
    from store.spill.spill_store import SpillStore

__all__ = ["REPLACED_MAX", "KeyedShare", "KeyedTurn"]

REPLACED_MAX = 256
"""Most messages that one batch replaces. Each is a frame of its own and takes a tenth of a millisecond, and all are
written in one step of the loop, under the delivery lock."""


class _Replacement:
    __slots__ = ("due_ms", "held", "moved", "now", "of_turn", "record", "taken")

    def __init__(self, taken: Taken, record: bytes, held: Held) -> None:
        self.taken = taken
        self.record = record
        self.held = held
        self.due_ms = held.due_ms
        self.moved = False
        self.now: Found | None = None  # the version that was journalled for it
        self.of_turn = taken.found.version == UNKNOWN_VERSION  # the message that it replaces is of the same batch


class KeyedShare:
    """The part of a large batch, while its slices are checked in several turns."""

    __slots__ = ("fresh", "kept", "mark", "replacing")

    def __init__(self) -> None:
        self.mark = (0, 0, 0)
        self.kept: list[Held] = []
        self.replacing: list[_Replacement] = []
        self.fresh: list[tuple[int, int, int]] = []


class KeyedTurn:
    """The messages with a delay key of the present turn. Network loop only."""

    def __init__(self, spill: SpillStore, sweeper: Delivery, keys: DelayKeys) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self.keys = keys
        self._kept: list[Held] = []  # answers that name a message which was pending before (mode keep)
        self._kept_before: list[Held] = []  # of the turn that was just journalled
        self._replacing: list[_Replacement] = []
        self._replaced: list[_Replacement] = []  # of the turn that was just journalled
        self._share: KeyedShare | None = None  # of the large batch that is being checked
        self.put_backs: PutBacks[_Replacement] = PutBacks(spill, self._restore, lambda one: one.held.offset)
        self.has_put_back = False
        """True if a message was put back since `taken_back` was last called."""
        self.moved: Callable[[int, int, str], object] = lambda *_: None
        """Called with delay id, due time and topic of a message that is replaced. Under the delivery lock."""
        self.withdrawn: Callable[[int], object] = lambda _: None
        """Called with the delay id when one of ``accepted``, or one of a failed turn, is cancelled. Under the lock."""
        self.grew: Callable[[int, str, int, bool], object] | None = None
        """Called with delay id, topic, the bytes by which a record grew, and whether its turn is not journalled yet.

        Under the delivery lock. None: nobody counts bytes.
        """
        self.accepted: list[tuple[int, int, bytes]] = []
        """Replacements of the turn just journalled whose first message was gone: they are pending in addition."""

    @property
    def is_idle(self) -> bool:
        """True if this turn keeps, replaces and adds no message with a key."""
        return not (self._kept or self._replacing or self.keys.fresh)

    def keep(self, kept: FirstStays) -> Held:
        """Answer a send with a message that is pending already; the answer waits until that one is durable."""
        held = Held(kept.offset, kept.due_ms)
        self._kept.append(held)
        return held

    def replace(self, taken: Taken, record: bytes, due_ms: int, now_ms: int) -> Held | Refused:
        """Let a message replace another when the turn ends."""
        share = self._share
        if share is not None and len(share.replacing) + len(self._replacing) - share.mark[1] >= REPLACED_MAX:
            remark = f"a batch replaces more than {REPLACED_MAX} messages by their delay keys: send it in parts"
            return Refused(PutStatus.MESSAGE_ILLEGAL, remark)
        held = Held(taken.found.delay_id, due_ms)
        self._replacing.append(_Replacement(taken, with_delay(record, due_ms - now_ms), held))
        return held

    def begin(self) -> Ticket:
        """Write the rows of this turn, before its frames; returns the ticket that makes them durable.

        Raises StoreError.
        """
        self.put_backs.settle()
        self._replaced, self.accepted = [], []
        self._kept_before, self._kept = self._kept, []
        self.keys.write([(one.taken.hash, one.taken.found.delay_id, one.due_ms) for one in self._replacing])
        return Ticket((self.keys.rows, self.keys.rows.written))

    def commit(self, ticket: Ticket | None) -> Ticket:
        """Journal the replacements; returns the ticket of all that the answers wait for. Raises StoreError.

        The turn's blocks are published at once: the next message with one of their keys must find them. On an error the
        replaced messages are put back.
        """
        spill = self._spill
        under_way: list[_Replacement] = []
        with spill.lock:
            self._sweeper.publish_all()
            try:
                for one in self._replacing:
                    # Each time: this one may replace what the one before has just journalled.
                    self._sweeper.publish_all()
                    block = self._put(one)
                    self.keys.is_of(one.taken.hash, one.held.offset, one.due_ms)
                    self._sweeper.offer(block, one.due_ms)
                    under_way.append(one)
            except StoreError:
                # Backwards: several may have replaced one message, each the one before it.
                for one in reversed(under_way):
                    self._put_back(one)
                raise
        self._replaced, self._replacing = under_way, []
        self.keys.committed()
        journal, rows = spill.journal, self.keys.rows
        return Ticket((journal, journal.written)).joined(Ticket((rows, rows.written))).joined(ticket)

    def _put(self, one: _Replacement) -> Block:
        spill = self._spill
        found = spill.find(one.held.offset)
        if found is None or found.done:
            found = self._other(one)
        elif found.version != one.taken.found.version:  # it was moved or replaced since the check
            one.taken = Taken(one.taken.hash, found, spill.read((found.ref,))[0])
        if found is not None:
            one.moved = True
            topic = record_fields(one.record)[0]
            self.moved(found.delay_id, found.due_ms, topic)
            fresh = restamped(one.record, found, one.due_ms)
            block = spill.move(found, fresh, one.due_ms)
            one.now = Found(found.delay_id, block.refs[0], one.due_ms, found.version + 1, False)
            if self.grew is not None:
                self.grew(found.delay_id, topic, len(fresh) - len(one.taken.record), True)
            return block
        offset = spill.next_id()
        entry = (one.due_ms, offset, fresh_copy(one.record, offset, one.due_ms))
        self.keys.write_other(one.taken.hash, offset, one.due_ms)
        block = spill.append([entry])
        one.now = Found(offset, block.refs[0], one.due_ms, 0, False)
        one.held.offset = offset
        self.accepted.append(entry)
        return block

    def _other(self, one: _Replacement) -> Found | None:
        """The message that got the key after the check, for instance by another replacement of this turn; or None."""
        spill, hash_ = self._spill, one.taken.hash
        owner = self.keys.owner(hash_)
        found = spill.find(owner) if owner not in (0, one.held.offset) else None
        if found is None or found.done:
            return None
        self.keys.write_other(hash_, owner, one.due_ms)
        one.taken = Taken(hash_, found, spill.read((found.ref,))[0])
        one.held.offset = owner
        return found

    def failed(self) -> None:
        """Forget everything of this turn, because it failed."""
        self._kept = []
        self._replacing = []
        self.keys.forget_turn()

    # ------------------------------------------------------------------------------------------------ large batches

    def mark(self, share: KeyedShare) -> None:
        """Remember what this turn has, before a slice of a large batch is checked."""
        share.mark = len(self._kept), len(self._replacing), len(self.keys.fresh)
        self._share = share

    def cut(self, share: KeyedShare) -> None:
        """Take everything since the mark out of this turn: it will belong to the turn that journals the batch."""
        self._share = None
        kept, replacing, fresh = share.mark
        share.kept += self._kept[kept:]
        share.replacing += self._replacing[replacing:]
        share.fresh += self.keys.cut(fresh)
        del self._kept[kept:], self._replacing[replacing:]

    def join(self, share: KeyedShare) -> None:
        """Make the part of a large batch a part of this turn."""
        self._kept += share.kept
        self._replacing += share.replacing
        self.keys.join(share.fresh)

    def forget(self, share: KeyedShare) -> None:
        """Undo the part of a large batch, also if it was just journalled."""
        for one in share.replacing:
            self._is_undone(one.held)
        for held in share.kept:
            if held in self._kept:
                self._kept.remove(held)
        self.keys.forget_all(share.fresh)

    def take_back(self, held: Held) -> bool:
        """Undo one message of this turn, or of the one just journalled; False: the gate has it, not this."""
        if self._is_undone(held) or any(one is held for one in (*self._kept, *self._kept_before)):
            return True
        self.keys.forget(held.offset)
        return False

    def _is_undone(self, held: Held) -> bool:
        """Undo a replacement of this turn, or of the one just journalled; False: it is no replacement."""
        for one in self._replacing:
            if one.held is held:
                self._replacing.remove(one)
                return True
        for at, one in enumerate(self._replaced):
            if one.held is held:
                del self._replaced[at]
                self._undo(one, self._replaced[at:])
                return True
        return False

    def taken_back(self, ticket: Ticket) -> Ticket:
        """A ticket that is done when ``ticket`` is and all replaced messages are durably put back."""
        self.has_put_back = False
        return ticket.joined(Ticket((self.put_backs, self.put_backs.written))) if self.put_backs else ticket

    def _undo(self, one: _Replacement, later: list[_Replacement]) -> None:
        """Take a replacement back. If a later one has replaced it, that one stays, and now replaces the first one."""
        for other in later:
            if other.held.offset == one.held.offset:
                other.taken, other.moved = one.taken, one.moved
                return
        self._put_back(one)

    def _put_back(self, one: _Replacement) -> None:
        """Make the replaced message pending again.

        If it belongs to the same batch, it is refused too. Then both are cancelled here: the gate only cancels the copy
        in its own frame, which is not the pending one. If nothing was replaced after all, the replacement is cancelled.
        """
        with self._spill.lock:
            self.has_put_back = True
            if one.moved and not one.of_turn:
                self.put_backs.put(one)
                return
            self._sweeper.publish_all()
            if one.now is None or self._spill.is_done(one.now.ref):
                return
            self._spill.revoke(one.now)
            self.withdrawn(one.held.offset)
            if not one.moved:
                before = one.taken.found
                self.keys.restore(one.taken.hash, one.held.offset, before.delay_id, before.due_ms)

    def _restore(self, one: _Replacement) -> None:
        """Journal the replaced message again as the next version. Under the delivery lock. Raises StoreError."""
        spill = self._spill
        self._sweeper.publish_all()
        found = spill.find(one.held.offset)
        if found is None or found.done:
            return
        before = one.taken.found
        record = with_delay(one.taken.record, sent_delay_ms(one.taken.record, before))
        fresh = restamped(record, found, before.due_ms)
        size = len(fresh) if self.grew is None else len(spill.read((found.ref,))[0])
        block = spill.move(found, fresh, before.due_ms)
        if self.grew is not None:
            self.grew(found.delay_id, record_fields(fresh)[0], len(fresh) - size, False)
        self._sweeper.offer(block, before.due_ms)
