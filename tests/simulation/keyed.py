"""What senders with delay keys, and whoever changes what is pending, know; and what must not be because of it.

A key's message is known by its delay id. A *holder* of an id is a message that was answered with it: the first one, one
that was kept out by it (its own body never comes), one that took its place. So of each id exactly one body is
delivered, that of the last holder which is sure, or of a later one whose answer was lost.

=============  =======================================================================================================
one a key      no second id is given while the first one's message is surely pending
keep           whoever is answered with an id that is there already is never delivered itself
replace        what was replaced is never delivered, its replacement once, under the same id, not before its own time
one winner     what was cancelled is never delivered, what was delivered is no more cancelled; a change that was
               answered with a version is delivered as that one, at its time, or as a later one
verdicts       a cancel that is asked for again stands, over restarts; what is pending is never unknown
restart        due now plus the delay that the present holder was sent with, however often it was moved
bulk           whoever has gone over all of a topic has cancelled all that was there from the beginning to the end
limits         never more is pending than is allowed, and nothing is refused with less than that; what stands in the
               log counts until its thread has said so, under the delivery lock
=============  =======================================================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from store.put.pending_api import PendingAnswer, PendingVerb, PendingVerdict
from tests.simulation.kinds import Kind, Violation

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger, Sent

__all__ = ["Desk", "Note", "epoch_of"]

KEPT_MS = 24 * 3_600_000
"""So long after a message was due it is known that it was cancelled."""
VIRTUAL = 1 << 62
Where = tuple[str, str]
Dues = dict[int, set[int]]
"""Topic and delay key."""


def epoch_of(delay_id: int) -> int:
    """Which start of a broker gave an id."""
    return (delay_id - VIRTUAL) >> 40


class Note:
    """What is known of a message with a delay key, beside what `Sent` has.

    ``role``: ``""`` not answered, ``plain`` stored at once, ``first``, ``kept`` or ``replaced`` (it took the place of
    another). ``over`` are the ids of its key that had come to an end when it was sent, ``sure`` those that had not.
    ``delays_ms``: the least and the most that it can have been sent with, if the clock was not set meanwhile.
    """

    __slots__ = ("as_id", "as_version", "delays_ms", "key", "mode", "over", "role", "sent_ms", "shift_ms", "sure")

    def __init__(
        self, key: str, mode: str, over: frozenset[int], sure: tuple[int, ...], times: tuple[int, int]
    ) -> None:
        self.key = key
        self.mode = mode
        self.over = over
        self.sure = sure
        self.sent_ms, self.shift_ms = times
        self.role = ""
        self.delays_ms: tuple[int, int] | None = None
        self.as_id = self.as_version = -1  # as it was delivered


class Id:
    """What is known of an id of a message with a key; ``floor``: version and due time of the last sure change."""

    __slots__ = ("cancel", "floor", "holders", "where")

    def __init__(self, where: Where) -> None:
        self.where = where
        self.holders: list[int] = []
        self.cancel = ""
        self.floor: tuple[int, int] | None = None


class Bulk:
    """A bulk cancel on its way over a topic: a query with a cursor, which may go on after a crash."""

    def __init__(self, topic: str, prefix: str, there: dict[int, Dues]) -> None:
        self.topic = topic
        self.prefix = prefix
        self.there = there  # what was surely pending at its begin, and its time then: a move may take it by the cursor
        self.cursor = ""
        self.whole = True  # whether nothing was in the way of its looks


class Desk:
    """Everything that is known; `clone` for a world that branches off."""

    def __init__(self) -> None:
        self.ids: dict[int, Id] = {}
        self.cancelled: dict[int, int] = {}  # delay id to due time, of all that was surely cancelled, keyed or not
        self.asked: dict[Where, list[tuple[int, int]]] = {}  # due times that were asked for, from and to
        self.maybe: set[int] = set()  # numbers whose message a command may have cancelled before it was answered
        self.bulk: Bulk | None = None
        self.running: Where | None = None  # topic and prefix of a call that cancels all that matches, now
        self.room: dict[int, dict[str, int]] = {}  # number to what could be pending when it was sent, by topic and ""
        self.count_max = self.topic_max = 0
        self.passing: frozenset[int] = frozenset()
        """Numbers in the log whose thread has not let go of the delivery lock yet: they may count as pending."""
        self.epoch = 0
        self.strict = False
        """Whether no disk fails: what is told of cancelled messages is never lost then."""

    def clone(self) -> Desk:
        """The same knowledge."""
        other = copy.copy(self)
        other.ids = {}
        for delay_id, known in self.ids.items():
            twin = other.ids[delay_id] = copy.copy(known)
            twin.holders = list(known.holders)
        other.cancelled = dict(self.cancelled)
        other.asked = {where: list(spans) for where, spans in self.asked.items()}
        other.maybe = set(self.maybe)
        other.bulk = copy.copy(self.bulk)
        return other

    # ------------------------------------------------------------------------------------------------ what is known

    def numbers(self, ledger: Ledger, where: Where) -> Iterable[Sent]:
        """Messages of a key."""
        return [m for m in ledger.sent.values() if m.note is not None and (m.topic, m.note.key) == where]

    def delivered(self, ledger: Ledger, delay_id: int) -> Sent | None:
        """Whose body was delivered under an id."""
        for message in self.numbers(ledger, self.ids[delay_id].where):
            if message.note is not None and message.note.as_id == delay_id and message.number in ledger.delivered:
                return message
        return None

    def is_sure(self, ledger: Ledger, delay_id: int) -> bool:
        """Whether an id's message must come, and has not."""
        known = self.ids[delay_id]
        acked = any(ledger.sent[number].state == "acked" for number in known.holders)
        return acked and not known.cancel and self.delivered(ledger, delay_id) is None

    def sure(self, ledger: Ledger, where: Where) -> tuple[int, ...]:
        """Ids of a key whose message is surely pending."""
        return tuple(i for i, known in self.ids.items() if known.where == where and self.is_sure(ledger, i))

    def over(self, ledger: Ledger, where: Where) -> frozenset[int]:
        """Ids of a key that have surely come to their end."""
        return frozenset(
            i
            for i, known in self.ids.items()
            if known.where == where and (known.cancel == "done" or self.delivered(ledger, i) is not None)
        )

    def possible(self, ledger: Ledger) -> dict[str, int]:
        """How many messages may be pending now: by topic, and in all (under "")."""
        counts = {"": 0}
        for message in ledger.sent.values():
            if message.kind in ("timed", "wild", "illegal") and message.state != "refused":
                gone = message.number in ledger.delivered and message.number not in self.passing
                if gone or message.cancel == "done" or 0 <= message.offset < VIRTUAL:
                    continue
                keyed = self.ids.get(message.offset)
                if message.note is not None and keyed is not None and keyed.cancel == "done":
                    continue
                counts[""] += 1
                counts[message.topic] = counts.get(message.topic, 0) + 1
        return counts

    def missing(self, ledger: Ledger) -> list[Sent]:
        """The last sure holders of ids that must have been delivered, and were not."""
        return [
            max((ledger.sent[n] for n in known.holders if ledger.sent[n].state == "acked"), key=lambda m: m.number)
            for delay_id, known in self.ids.items()
            if self.is_sure(ledger, delay_id)
        ]

    # ------------------------------------------------------------------------------------------------ sends

    def sends(self, ledger: Ledger, messages: list[Sent]) -> None:
        """Messages are about to be sent."""
        if self.count_max or self.topic_max:
            self.room[messages[0].number] = self.possible(ledger)
        if self.running is not None:  # it may still come to them
            topic, prefix = self.running
            self.maybe |= {m.number for m in messages if m.topic == topic and m.may_match(prefix)}

    def acked(self, ledger: Ledger, message: Sent, wall_ms: int, shift_ms: int) -> None:
        """A message with a key was answered with an offset."""
        note, where = message.note, (message.topic, message.note.key if message.note else "")
        assert note is not None
        if message.offset < VIRTUAL:
            note.role = "plain"
            return
        known = self.ids.get(message.offset)
        if (known is None or not known.holders) and epoch_of(message.offset) == self.epoch:
            note.role = "first"
            both = [delay_id for delay_id in note.sure if self.is_sure(ledger, delay_id)]
            if both:
                raise Violation(Kind.ANSWER, f"{message} has the key {where} beside {both[0]:#x}, which is pending")
        elif note.mode not in ("keep", "replace"):
            raise Violation(Kind.ANSWER, f"{message}: its offset was given to another message already")
        else:
            note.role = "kept" if note.mode == "keep" else "replaced"
        if known is None:
            known = self.ids[message.offset] = Id(where)
        if known.where != where or message.offset in ledger.by_offset:
            raise Violation(Kind.ANSWER, f"{message} was answered with the offset of a message of {known.where}")
        known.holders.append(message.number)
        if message.offset in note.over:
            raise Violation(Kind.ANSWER, f"{message} was answered with what had been delivered or cancelled before")
        if message.offset in self.cancelled:
            known.cancel = "done"
        elif message.number in self.maybe:
            known.cancel = known.cancel or "maybe"
        if note.shift_ms == shift_ms:
            note.delays_ms = message.due_ms - wall_ms, message.due_ms - note.sent_ms
        if note.role == "replaced" and message.state == "acked":
            before = self.delivered(ledger, message.offset)
            if before is not None and before.number < message.number:
                raise Violation(Kind.COMMAND, f"{message} took the place of {before}, which was delivered")

    def bounded(self, ledger: Ledger) -> None:
        """No more is pending than is allowed.

        What took another's place does not count, nor what is pending again since a power cut took its delivery: others
        were accepted in its place meanwhile.
        """
        if not self.count_max and not self.topic_max:
            return
        counts: dict[str, int] = {}
        for message in ledger.sent.values():
            plain = message.kind == "timed" and message.note is None
            if not plain or message.number in ledger.undone:
                continue
            if message.must and message.held and message.number not in ledger.delivered:
                counts[message.topic] = counts.get(message.topic, 0) + 1
        for delay_id, known in self.ids.items():
            if not ledger.undone.isdisjoint(known.holders):
                continue
            if self.is_sure(ledger, delay_id) and all(_mode(ledger, n) != "replace" for n in known.holders):
                counts[known.where[0]] = counts.get(known.where[0], 0) + 1
        if 0 < self.count_max < sum(counts.values()) or any(0 < self.topic_max < count for count in counts.values()):
            raise Violation(
                Kind.ANSWER, f"{counts} are pending, {self.count_max} in all and {self.topic_max} a topic are allowed"
            )

    def refused(self, ledger: Ledger, numbers: list[int], illegal: bool, remark: str) -> set[int]:
        """Sends were refused; answers the numbers of which it is not known whether they are stored all the same."""
        first = ledger.sent[numbers[0]]
        room = self.room.get(first.number)
        if room is not None and "are allowed (timewheel" in remark:
            topic, most = ("", self.count_max) if "timewheelPendingMax" in remark else (first.topic, self.topic_max)
            later = sum(other >= first.number for other in ledger.sent)
            if room.get(topic, 0) + later - 1 < most:
                raise Violation(
                    Kind.ANSWER, f"{first} was refused ({remark}), {room.get(topic, 0)} and {later} may be pending"
                )
        notes = [(number, note) for number in numbers if (note := ledger.sent[number].note) is not None]
        if illegal and "is that of a pending message" in remark:
            free = [number for number, note in notes if f"{note.key[:80]!r}" in remark]
            if free and not any(self._may_be_taken(ledger, number) for number in free):
                raise Violation(Kind.ANSWER, f"{ledger.sent[free[0]]} was refused, and its key is free: {remark}")
        # What a refused message had replaced is put back before the refusal is answered, unless the remark says more.
        return {number for number, note in notes if note.mode == "replace"} if "is not known" in remark else set()

    def _may_be_taken(self, ledger: Ledger, number: int) -> bool:
        message = ledger.sent[number]
        assert message.note is not None
        for other in self.numbers(ledger, (message.topic, message.note.key)):
            if other.number == number or (other.state == "refused" and other.note and other.note.mode != "replace"):
                continue
            if other.offset < 0 or (other.offset >= VIRTUAL and other.offset not in message.note.over):
                return True
        return False

    # ------------------------------------------------------------------------------------------------ deliveries

    def comes(self, ledger: Ledger, message: Sent, own: tuple[int, int, int], where: str, store_ms: int) -> None:
        """A message with a key stands in the log, with a delay id, a version and a due time of its own."""
        note = message.note
        assert note is not None
        delay_id, version, due_ms = own
        before = next(
            (
                other
                for other in self.numbers(ledger, (message.topic, note.key))
                if other is not message
                and other.note
                and other.note.as_id == delay_id
                and other.number in ledger.delivered
            ),
            None,
        )
        note.as_id, note.as_version = delay_id, version
        if before is not None:
            raise Violation(Kind.TWICE, f"{where}: {message} was delivered, and so was {before}, under the same id")
        if note.role == "kept" and message.state == "acked":
            raise Violation(Kind.COMMAND, f"{where}: {message} was kept out, and delivered")
        known = self.ids.get(delay_id)
        dues = {message.due_ms}
        for number in () if known is None else known.holders:
            other = ledger.sent[number]
            if other.note and other.note.role == "replaced" and other.state == "acked" and number > message.number:
                raise Violation(Kind.COMMAND, f"{where}: {message} was replaced by {other}, and delivered")
        if known is not None and known.floor is not None:
            dues.add(known.floor[1])
            if version < known.floor[0] or (version == known.floor[0] and due_ms != known.floor[1]):
                raise Violation(
                    Kind.COMMAND,
                    f"{where}: {message} was delivered as version {version}, due {due_ms}, not {known.floor}",
                )
        asked = self.asked.get((message.topic, note.key), ())
        # A replacement that waited for the first of its turn may be looked at when its time is past: it is due then.
        looked_at_late = note.mode == "replace" and message.due_ms < due_ms <= store_ms
        if due_ms not in dues and not looked_at_late and not any(first <= due_ms <= last for first, last in asked):
            raise Violation(Kind.COMMAND, f"{where}: {message} was delivered as due at {due_ms}, of {dues}, {asked}")

    def not_cancelled(self, message: Sent, delay_id: int, where: str) -> None:
        """A message that is delivered was not cancelled."""
        known = self.ids.get(delay_id)
        if delay_id in self.cancelled or (known is not None and known.cancel == "done"):
            raise Violation(Kind.COMMAND, f"{where}: {message} was cancelled, and delivered")

    # ------------------------------------------------------------------------------------------------ commands

    def asks(self, ledger: Ledger, where: Where, verb: PendingVerb, span: tuple[int, int]) -> list[Id]:
        """A change of a key's message is about to be asked for; answers the ids that may be cancelled by it."""
        touched = []
        if verb is PendingVerb.CANCEL:
            self.maybe |= {m.number for m in self.numbers(ledger, where) if m.state == "sent"}
            for known in self.ids.values():
                if known.where == where and not known.cancel:
                    known.cancel = "maybe"
                    touched.append(known)
        else:
            self.asked.setdefault(where, []).append(span)
        return touched

    def answered(
        self,
        ledger: Ledger,
        where: Where,
        verb: PendingVerb,
        answer: PendingAnswer,
        before: Collection[int],
        over: Collection[int],
    ) -> None:
        """A change was answered; ``before`` were its ids that were surely pending, ``over`` those that were not."""
        verdict, text = answer.verdict, f"{verb.value} of {where}: {answer}"
        if verdict is PendingVerdict.DONE:
            known = self.ids.setdefault(answer.offset, Id(where))
            came = self.delivered(ledger, answer.offset)
            if answer.offset in over or (verb is PendingVerb.CANCEL and came is not None):
                raise Violation(Kind.COMMAND, f"{text}, which had come to its end: {came}")
            if verb is PendingVerb.CANCEL:
                known.cancel = "done"
                self.cancelled[answer.offset] = answer.due_ms
                return
            known.floor = answer.version, answer.due_ms
            if came is not None and came.note is not None and came.note.as_version < answer.version:
                raise Violation(Kind.COMMAND, f"{text}, but {came} was delivered as version {came.note.as_version}")
            return
        still = [delay_id for delay_id in before if self.is_sure(ledger, delay_id)]
        fine = (PendingVerdict.CHANGED,) if verb is PendingVerb.CANCEL else (PendingVerdict.CHANGED, _V.ALREADY)
        if still and verdict not in fine:
            raise Violation(Kind.COMMAND, f"{text}, but {still[0]:#x} is pending")

    def cancelled_again(self, delay_id: int, answer: PendingAnswer, wall_max_ms: int) -> None:
        """A cancel that stood was asked for again."""
        right = {PendingVerdict.ALREADY}
        if not self.strict or wall_max_ms > self.cancelled[delay_id] + KEPT_MS:
            right.add(PendingVerdict.UNKNOWN)
        if answer.verdict not in right:
            raise Violation(Kind.COMMAND, f"cancel of {delay_id:#x}, which was cancelled before: {answer}")

    def restarts(self, ledger: Ledger, answer: PendingAnswer, now_ms: int) -> None:
        """A message was restarted: by the delay of its present holder, if it is known who that is."""
        known = self.ids[answer.offset]
        sure = [ledger.sent[n] for n in known.holders if ledger.sent[n].state == "acked"]
        mine = [m for m in sure if m.note is not None and m.note.role in ("first", "replaced")]
        last = max((m.number for m in mine), default=0)
        doubt = any(
            m.number > last and m.note and m.note.mode == "replace" and m.state != "refused"
            for m in self.numbers(ledger, known.where)
        )
        if not mine or doubt:
            return
        note = ledger.sent[last].note
        if note is None or note.delays_ms is None:
            return
        first, most = note.delays_ms
        if answer.verdict is PendingVerdict.REFUSED or not now_ms + first <= answer.due_ms <= now_ms + most:
            raise Violation(
                Kind.COMMAND, f"restart at {now_ms}: {answer}; {ledger.sent[last]} was sent with {first} to {most} ms"
            )

    # ------------------------------------------------------------------------------------------------ bulk

    def pending_of(self, ledger: Ledger, topic: str, prefix: str) -> dict[int, Dues]:
        """All that is surely pending and matches: number, of a key's message that of its first holder, and dues."""
        found = [
            m.number
            for m in ledger.sent.values()
            if not prefix
            and m.topic == topic
            and m.note is None
            and m.held
            and m.must
            and m.kind == "timed"
            and m.number not in ledger.delivered
            and len(m.dues) == 1
        ]
        found += [
            known.holders[0]
            for delay_id, known in self.ids.items()
            if known.where[0] == topic
            and known.where[1].startswith(prefix)
            and known.floor is None
            and self.is_sure(ledger, delay_id)
            and len(known.holders) == 1
            and not self.asked.get(known.where)
        ]
        return {number: {v: set(dues) for v, dues in ledger.sent[number].dues.items()} for number in found}

    def bulk_begins(self, ledger: Ledger, topic: str, prefix: str) -> list[tuple[Sent | Id, str]]:
        """Some slices are about to be cancelled; answers what may be, and what it was before."""
        self.running = topic, prefix
        touched: list[tuple[Sent | Id, str]] = []
        for message in ledger.sent.values():
            if message.topic != topic or message.kind not in ("timed", "wild"):
                continue
            if message.offset < 0:
                if message.may_match(prefix):
                    self.maybe.add(message.number)
            elif message.note is None and message.held and not message.cancel and not prefix:
                touched.append((message, message.cancel))
        touched += [
            (known, known.cancel)
            for known in self.ids.values()
            if known.where[0] == topic and known.where[1].startswith(prefix) and not known.cancel
        ]
        for one, _ in touched:
            one.cancel = "maybe"
        return touched

    def bulk_answers(self, ledger: Ledger, answers: Iterable[PendingAnswer], over: Collection[int]) -> None:
        """So many were cancelled; ``over`` are numbers that were delivered before."""
        for answer in answers:
            self.cancelled[answer.offset] = answer.due_ms
            known = self.ids.get(answer.offset)
            number = ledger.by_offset.get(answer.offset)
            came: Sent | None = None
            if known is not None:
                known.cancel = "done"
                came = self.delivered(ledger, answer.offset)
            elif number is not None:
                ledger.sent[number].cancel = "done"
                came = ledger.sent[number] if number in ledger.delivered else None
            if came is not None and came.kind == "timed":
                before = "before" if came.number in over else "meanwhile"
                raise Violation(Kind.COMMAND, f"{came} was cancelled with others, and delivered {before}")

    def bulk_is_over(self, ledger: Ledger) -> None:
        """A bulk cancel has come to the end of what it looked for."""
        bulk, self.bulk = self.bulk, None
        assert bulk is not None
        if not bulk.whole:
            return
        for number, dues in bulk.there.items():
            message = ledger.sent[number]
            if message.note is not None:
                known = self.ids[message.offset]
                left = self.is_sure(ledger, message.offset) and known.floor is None and len(known.holders) == 1
                left = left and not self.asked.get(known.where)
            else:
                left = message.must and number not in ledger.delivered and message.dues == dues
            if left and message.state == "acked":
                raise Violation(Kind.COMMAND, f"{message}: a cancel of all that matches has passed it by")


_V = PendingVerdict


def _mode(ledger: Ledger, number: int) -> str:
    note = ledger.sent[number].note
    return "" if note is None else note.mode
