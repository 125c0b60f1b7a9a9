"""What was sent, what was answered, and what the CommitLog may and must hold because of it.

The ledger knows nothing of the broker's inside. It hears what clients hear (replies, outcomes of commands), reads the
CommitLog, and is told of crashes with what the flush mode promises to have survived. `Violation` is raised at the
first thing that must not be.

=================  ===================================================================================
``sent``           no answer yet: it may be delivered once, or not at all
``acked``          must be delivered once, unless a power cut under ASYNC_FLUSH took its last half second
``refused``        must not be delivered, unless a crash has brought back what nobody was promised
``unsure``         stored but not known to be durable, or the answer was lost: once or not at all
=================  ===================================================================================
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterable

from broker_plugin.rules.properties import own_properties_of
from remoting.messages.message import record_fields, store_ms_at
from remoting.messages.properties import TW_LEVEL, get_property, parse_properties
from store.derived.dispatch import SCHEDULE_TOPIC
from store.put.plugin_api import CommandOutcome
from tests.simulation.decisions import COMMIT, DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, ROLLBACK, BrokenError, Decisions
from tests.simulation.keyed import Desk, Note
from tests.simulation.kinds import Kind, Violation
from tests.simulation.names import Names
from tests.simulation.ordered import Ordered
from tests.simulation.pops import Pops, retry_of

__all__ = ["Entry", "Ledger", "Sent", "Violation", "body_of"]

VIRTUAL = 1 << 62
FLUSH_INTERVAL_MS = 500
"""flushIntervalCommitLog: what a power cut may take under ASYNC_FLUSH."""
RESERVED_MS = 72 * 3_600_000
"""fileReservedTime of every shape that keeps its segments: an older half message is given up without more checks."""


class Sent:
    """One message, as its sender knows it.

    ``kind``: ``now``, ``timed``, ``level``, ``half``, ``illegal`` (a half message with a time), or ``wild`` (with
    properties that mean something to a broker: once and not lost is all that is known of it, if it is accepted).
    ``connection``: which client has sent it; what two of them send at a time may come in any order.
    ``plain`` are the properties that nobody but its receiver understands: they come as they were sent.
    ``dues``: by version the due times that it may be delivered under;
    ``cancel``: ``""``, ``"maybe"`` (the command's answer was lost) or ``"done"``.
    """

    __slots__ = (
        "acked_ms",
        "asked",
        "batch",
        "body",
        "cancel",
        "connection",
        "decision",
        "decision_end",
        "delay_ms",
        "due_ms",
        "dues",
        "durable",
        "end",
        "kind",
        "looked_ms",
        "note",
        "number",
        "offset",
        "place",
        "plain",
        "queue_id",
        "state",
        "topic",
    )

    def __init__(
        self, number: int, kind: str, topic: str, queue_id: int, due_ms: int, body: bytes, delay_ms: int = 0
    ) -> None:
        self.number = number
        self.kind = kind
        self.topic = topic
        self.queue_id = queue_id
        self.due_ms = due_ms
        self.delay_ms = delay_ms
        self.body = body
        self.state = "sent"
        self.offset = -1
        self.end = 0
        self.dues: dict[int, set[int]] = {0: {due_ms}}
        self.cancel = ""
        self.place: tuple[int, int] | None = None  # of a half message: number in its queue, CommitLog offset
        self.asked: set[str] = set()  # which decisions of it
        self.decision = ""  # as it was answered
        self.decision_end = 0
        self.batch: list[int] = []  # all numbers of its batch
        self.connection = 0
        self.plain: dict[str, str] = {}
        self.acked_ms: int | None = None  # by the clock that nobody sets
        self.looked_ms: int | None = None  # when the flusher first looked since
        self.durable = False  # by the ledger's own clock
        self.note: Note | None = None  # if it has a delay key

    @property
    def refusal(self) -> Kind:
        """What it is if it is stored although it was refused."""
        return Kind.BATCH if self.batch else Kind.REFUSED

    @property
    def held(self) -> bool:
        """Whether it was acknowledged as waiting in the spill store."""
        return self.offset >= VIRTUAL

    def may_match(self, prefix: str) -> bool:
        """Whether a query for keys with this prefix may find it."""
        return self.note is None or self.note.key.startswith(prefix)

    @property
    def must(self) -> bool:
        """Whether it has to be delivered in the end."""
        if self.note is not None and self.note.role != "plain":
            return False  # its id must, whoever holds that
        return self.state == "acked" and not self.cancel

    def __repr__(self) -> str:
        dues = {version: sorted(dues) for version, dues in self.dues.items()}
        return (
            f"message {self.number} ({self.kind}, {self.topic}/{self.queue_id}, dues {dues}, {self.state}, "
            f"offset {self.offset:#x}, cancel {self.cancel!r})"
        )


class Entry:
    """One record of the CommitLog."""

    __slots__ = ("number", "offset", "original", "queue_id", "size", "store_ms")

    def __init__(self, offset: int, size: int, number: int, original: bool, store_ms: int, queue_id: int = 0) -> None:
        self.offset = offset
        self.size = size
        self.number = number
        self.original = original  # no delivery: as it waits in the level's queue, half, given up, an op message
        self.store_ms = store_ms
        self.queue_id = queue_id


class Ledger:
    """Everything that clients know; `clone` for a world that branches off."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.by_offset: dict[int, int] = {}
        self.entries: list[Entry] = []
        self.delivered: dict[int, Entry] = {}
        self.originals: dict[int, Entry] = {}
        self.scanned = 0
        self.begin = 0  # of the CommitLog: what stands before it was there once
        self.order_holds = True
        self.crashes = 0
        self.decisions = Decisions()
        self.names = Names()
        self.pops = Pops()
        self.ordered = Ordered()
        self.desk = Desk()
        self.deleted: dict[str, int] = {}  # topic to the log's end when it was known to be deleted for the last time
        self.fewer: set[str] = set()  # topics that had fewer queues once: what was to go to one of the others may not
        self.check_max = 0  # checks after which a half message may be given up
        self.undone: set[int] = set()  # delivered once, and pending again since the power took the delivery
        self.unflushed: list[int] = []  # acknowledged, and not known to be durable by the ledger's own clock
        self._last: dict[tuple[str, int, int, int], int] = {}
        self._unplaced: frozenset[int] = frozenset()  # with a key, pending when the power failed

    def clone(self) -> Ledger:
        """The same knowledge, to go on elsewhere."""
        other = copy.copy(self)
        other.sent = {}
        for number, message in self.sent.items():
            twin = other.sent[number] = copy.copy(message)
            twin.dues = {version: set(dues) for version, dues in message.dues.items()}
            twin.asked = set(message.asked)
            twin.note = copy.copy(message.note)
        other.by_offset = dict(self.by_offset)
        other.entries = list(self.entries)
        other.delivered = dict(self.delivered)
        other.originals = dict(self.originals)
        other.deleted = dict(self.deleted)
        other.undone = set(self.undone)
        other.unflushed = list(self.unflushed)
        other.fewer = set(self.fewer)
        other.decisions = self.decisions.clone()
        other.names = self.names.clone()
        other.pops = self.pops.clone()
        other.ordered = self.ordered.clone()
        other.desk = self.desk.clone()
        other._last = dict(self._last)
        return other

    @property
    def popped(self) -> tuple[Pops, Pops]:
        """What is known of pops, of both groups."""
        return self.pops, self.ordered

    # ------------------------------------------------------------------------------------------------ what is answered

    def acked(self, number: int, offset: int, end: int, sure: bool, now_ms: int | None) -> None:
        """A reply said that a message is stored: at ``offset``; ``end`` is how far log or journal were then.

        ``now_ms`` is the time by a clock that nobody sets; None if the reply has waited for a sync.
        """
        message = self.sent[number]
        if offset in self.by_offset:
            raise Violation(Kind.ANSWER, f"{message}: its offset was given to message {self.by_offset[offset]} already")
        message.state = "acked" if sure else "unsure"
        message.offset, message.end = offset, end
        message.acked_ms = now_ms
        if now_ms is None:
            message.durable = sure
        else:
            self.unflushed.append(number)
        if offset >= VIRTUAL and message.note is None:
            self.by_offset[offset] = number
            if offset in self.desk.cancelled:
                message.cancel = "done"
            elif number in self.desk.maybe:
                message.cancel = message.cancel or "maybe"

    def flushed(self, began_ms: int, trouble_ms: int) -> None:
        """The flusher has done a step that began then; the disk and the clock were last in trouble at ``trouble_ms``.

        What was acknowledged since, and half a second before a look that came half a second after another one, is
        durable now, whatever the broker itself believes.
        """
        left = []
        for number in self.unflushed:
            message = self.sent[number]
            if message.acked_ms is None or message.acked_ms <= trouble_ms:
                continue
            if message.looked_ms is None and message.acked_ms <= began_ms:
                message.looked_ms = began_ms
            if message.looked_ms is not None and began_ms >= message.looked_ms + FLUSH_INTERVAL_MS:
                message.durable = True
            else:
                left.append(number)
        self.unflushed = left

    def refused(self, number: int) -> None:
        """A reply said that a message is not stored."""
        message = self.sent[number]
        message.state = "refused"
        if number in self.delivered or number in self.originals:
            raise Violation(message.refusal, f"{message}: refused, but it was delivered before the answer")

    def cancel(self, number: int, outcome: CommandOutcome | None, delivered_before: bool) -> None:
        """A cancel was answered; None: with an error, so nothing is known. The log was read just before."""
        message = self.sent[number]
        if outcome is None:
            message.cancel = message.cancel or "maybe"
            return
        self._judge(message, outcome, delivered_before or number in self.delivered)
        if outcome in (CommandOutcome.DONE, CommandOutcome.ALREADY_CANCELLED):
            message.cancel = "done"

    def moving(self, number: int, due_ms: int) -> int:
        """A move is about to be asked for; answers the highest version that it may make."""
        message = self.sent[number]
        version = max(message.dues) + 1
        for before in range(1, version + 1):  # an earlier move whose answer was lost may not have happened
            message.dues.setdefault(before, set()).add(due_ms)
        return version

    def moved(
        self, number: int, due_ms: int, version: int, outcome: CommandOutcome | None, delivered_before: bool
    ) -> None:
        """A move was answered; None: with an error."""
        message = self.sent[number]
        if outcome is None:
            return
        if delivered_before or number not in self.delivered:
            self._judge(message, outcome, delivered_before)
        if outcome is CommandOutcome.DONE:
            # A move to the very time that it has changes nothing, so it may still have version 0.
            dues = message.dues.items()
            message.dues = {v: {due_ms} for v, before in dues if v <= version and (v or due_ms in before)}
        elif outcome is CommandOutcome.ALREADY_CANCELLED:
            message.cancel = "done"

    def _judge(self, message: Sent, outcome: CommandOutcome, delivered: bool) -> None:
        """Hold the answer of a command against what is known."""
        if delivered:
            right: tuple[CommandOutcome, ...] = (CommandOutcome.ALREADY_DELIVERED,)
            if self.delivered[message.number].offset < self.begin:  # retention took it
                right = (*right, CommandOutcome.UNKNOWN, CommandOutcome.ALREADY_CANCELLED)
        elif message.cancel == "done":
            right = (CommandOutcome.ALREADY_CANCELLED, CommandOutcome.UNKNOWN)
        elif message.state == "acked" and not message.cancel:
            right = (CommandOutcome.DONE,)
        else:
            return
        if outcome not in right:
            raise Violation(
                Kind.COMMAND, f"{message}: a command was answered with {outcome.name}, expected {right[0].name}"
            )

    # ------------------------------------------------------------------------------------------------ what is stored

    def read(self, records: Iterable[tuple[int, bytes]], wall_at: Callable[[int], int | None]) -> None:
        """Look at what the CommitLog has got since the last call; ``wall_at`` says what time it was for an append."""
        for offset, record in records:
            if offset < self.scanned:
                continue
            self.scanned = offset + len(record)
            self._look_at(offset, record, wall_at(offset))

    def _look_at(self, offset: int, record: bytes, wall_ms: int | None) -> None:
        try:
            self._take(offset, record, wall_ms)
        except BrokenError as broken:
            number = int(body_of(record).partition(b".")[0].partition(b",")[0])
            raise Violation(Kind.TRANSACTION, f"CommitLog {offset}: {self.sent.get(number)} {broken}") from broken

    def _half_of(self, message: Sent, offset: int) -> Entry:
        found = self.originals.get(message.number)
        if found is None:  # a damaged body can have the number of another message
            raise Violation(Kind.CONTENT, f"CommitLog {offset}: {message} has no half message")
        return found

    def _take(self, offset: int, record: bytes, wall_ms: int | None) -> None:
        topic, queue_id, properties = record_fields(record)
        body = body_of(record)
        if topic == OP_TOPIC:
            if not body.replace(b",", b"").isdigit():
                raise Violation(Kind.CONTENT, f"CommitLog {offset}: an op message of nobody, body {body[:40]!r}")
            self.entries.append(Entry(offset, len(record), 0, True, 0))
            self.decisions.op(self, offset, properties, body)
            return
        number_text = body.partition(b".")[0]
        message = self.sent.get(int(number_text)) if number_text.isdigit() else None
        if message is None:
            raise Violation(Kind.CONTENT, f"CommitLog {offset}: a record that nobody sent, body {body[:40]!r}")
        at = store_ms_at(record)
        store_ms = int.from_bytes(record[at : at + 8], "big")
        if retry_of(topic):
            if (body, retry_of(topic)) != (message.body, message.topic):
                raise Violation(Kind.CONTENT, f"CommitLog {offset}: a copy of {message} in {topic} is another")
            self.entries.append(Entry(offset, len(record), 0, True, store_ms))
            self.pops.copied(offset, message.number, topic, properties, store_ms)
            return
        original = topic in (SCHEDULE_TOPIC, HALF_TOPIC, DISCARD_TOPIC)
        entry = Entry(offset, len(record), message.number, original, store_ms, queue_id)
        if topic == DISCARD_TOPIC:
            entry.number = -message.number
            self.entries.append(entry)
            expired = store_ms - self._half_of(message, offset).store_ms > RESERVED_MS
            self.decisions.discarded(offset, message, 0 if expired else self.check_max)
            return
        if topic == HALF_TOPIC:
            self.decisions.half(offset, record, message)
        elif message.kind == "half":
            self.decisions.committed(record, message, self._half_of(message, offset).offset)
        known = self.originals if original else self.delivered
        if message.number in known:
            raise Violation(
                Kind.TWICE,
                f"CommitLog {offset}: {message} is there a second time, before at {known[message.number].offset}",
            )
        if body != message.body:
            raise Violation(Kind.CONTENT, f"CommitLog {offset}: {message} has another body")
        if message.plain:
            found = parse_properties(properties)
            for name, value in message.plain.items():
                if found.get(name) != value:
                    raise Violation(
                        Kind.CONTENT, f"CommitLog {offset}: {message} has not its property {name!r} any more"
                    )
        known[message.number] = entry
        self.entries.append(entry)
        if message.state == "refused" and not original:
            raise Violation(message.refusal, f"CommitLog {offset}: {message} was refused, and delivered")
        if original:
            return
        if topic != message.topic or (queue_id != message.queue_id and topic not in self.fewer):
            raise Violation(Kind.CONTENT, f"CommitLog {offset}: {message} went to {topic}/{queue_id}")
        self._check_time(entry, message, properties, wall_ms)
        self._check_order(entry, message)

    def _check_time(self, entry: Entry, message: Sent, properties: str, wall_ms: int | None) -> None:
        where = f"CommitLog {entry.offset}"
        due_ms = 0
        if message.kind == "level":
            if get_property(properties, TW_LEVEL) is None:
                raise Violation(Kind.CONTENT, f"{where}: {message} was delivered without its level's mark")
            if message.number not in self.originals:
                raise Violation(Kind.CONTENT, f"{where}: {message} was delivered, but it is not in its level's queue")
            due_ms = self.originals[message.number].store_ms + message.delay_ms
        elif message.kind == "timed":
            own = own_properties_of(properties)
            if message.cancel == "done":
                raise Violation(Kind.COMMAND, f"{where}: {message} was cancelled, and delivered")
            if own is not None:
                self.desk.not_cancelled(message, own[0], where)
            if own is None:
                due_ms = message.due_ms
                if message.state == "acked" and message.held:
                    raise Violation(Kind.CONTENT, f"{where}: {message} was delivered without its delay id")
            else:
                offset, version, due_ms = own
                if message.state == "acked" and offset != message.offset:
                    raise Violation(Kind.CONTENT, f"{where}: {message} was delivered under the delay id {offset:#x}")
                if message.note is not None:
                    self.desk.comes(self, message, own, where, entry.store_ms)
                elif due_ms not in message.dues.get(version, ()):
                    raise Violation(
                        Kind.COMMAND, f"{where}: {message} was delivered as version {version}, due {due_ms}"
                    )
        if entry.store_ms < due_ms:
            raise Violation(Kind.EARLY, f"{where}: {message} is early: stored at {entry.store_ms}, due at {due_ms}")
        if wall_ms is not None and wall_ms < due_ms:
            raise Violation(Kind.EARLY, f"{where}: {message} is early: the clock showed {wall_ms}, due at {due_ms}")

    def _check_order(self, entry: Entry, message: Sent) -> None:
        """Equal due times of one topic and queue in the order of their acceptance; so, too, what is sent now.

        What was moved, or may have replaced another by its delay key, has no certain place.
        """
        note = message.note
        if note is not None and (note.as_version != 0 or note.mode == "replace" or message.number in self._unplaced):
            return
        if message.kind in ("level", "half", "wild") or (
            message.kind == "timed" and (len(message.dues) > 1 or 0 not in message.dues)
        ):
            return
        if message.kind == "timed" and not (self.order_holds and message.held):
            return
        key = (message.topic, entry.queue_id, message.due_ms if message.kind == "timed" else 0, message.connection)
        last = self._last.get(key, 0)
        if last > message.number:
            raise Violation(
                Kind.ORDER, f"CommitLog {entry.offset}: {message} comes behind message {last}: out of order"
            )
        self._last[key] = message.number

    # ------------------------------------------------------------------------------------------------ crashes

    def crashed(self, power: bool, log_synced: int, journal_synced: int) -> None:
        """Everything ended. Under ASYNC_FLUSH a power cut takes what was not synced: the arguments tell."""
        self.crashes += 1
        if power:  # a change of the key's message that kept it from its place may be lost
            pending = {number for number, message in self.sent.items() if message.note and number not in self.delivered}
            self._unplaced |= pending
        self.desk.running = None
        self.unflushed.clear()
        for message in self.sent.values():
            if message.state in ("sent", "refused"):
                message.state = "unsure"
            if message.state == "acked" and power and not message.durable:
                synced = journal_synced if message.held else log_synced
                if message.end > synced:
                    message.state = "unsure"
            if power and message.decision_end > log_synced:
                message.decision = ""

    def reopened(self, begin: int, end: int, records: Iterable[tuple[int, bytes]]) -> None:
        """A broker has recovered: the log now goes from ``begin`` to ``end``. Reads all of it anew."""
        gone = [entry for entry in self.entries if entry.offset < begin]
        old = {entry.offset: entry for entry in self.entries if entry.offset >= begin}
        self.entries = gone
        self.delivered = {entry.number: entry for entry in gone if not entry.original}
        self.originals = {entry.number: entry for entry in gone if entry.original and entry.number > 0}
        self.decisions = self.decisions.before(begin)
        self._last = {}
        self.scanned = self.begin = begin
        for offset, record in records:
            known = old.get(offset)
            self.scanned = offset + len(record)
            self._look_at(offset, record, None)
            if known is not None and known.number != self.entries[-1].number:
                raise Violation(
                    Kind.LOST,
                    f"CommitLog {offset}: message {known.number} stood here before the crash, "
                    f"now it is message {self.entries[-1].number}",
                )
        self.deleted = {topic: min(at, end) for topic, at in self.deleted.items()}
        for entry in old.values():
            if entry.offset >= end:
                self.undone.add(entry.number)
                continue
            at = bisect_left(self.entries, entry.offset, key=lambda found: found.offset)
            if at == len(self.entries) or self.entries[at].offset != entry.offset:
                raise Violation(
                    Kind.LOST, f"CommitLog {entry.offset}: the record of message {entry.number} is gone after a crash"
                )
        for message in self.sent.values():
            stored = message.number in (self.originals if message.kind in ("level", "half") else self.delivered)
            stored = stored or (message.kind == "wild" and message.number in self.originals)
            if (message.decision == COMMIT and message.number not in self.delivered) or (
                message.decision == ROLLBACK and message.number not in self.decisions.rolled_back
            ):
                raise Violation(
                    Kind.LOST, f"{message}: {message.decision} was answered and durable, but is gone after a crash"
                )
            if message.state == "acked" and not message.held and not stored:
                raise Violation(Kind.LOST, f"{message}: acknowledged and durable, but gone after a crash")

    def finished(self) -> None:
        """All time has passed: what must be delivered, is."""
        for message in self.missing():
            raise Violation(Kind.LOST, f"{message}: lost")
        for message in self.sent.values():
            # Its client has gone, and nothing has crashed since; of a batch with delay keys some may be kept out.
            if message.batch and message.state == "sent" and message.note is None:
                stored = [number in self.delivered or number in self.originals for number in message.batch]
                if any(stored) and not all(stored):
                    raise Violation(
                        Kind.BATCH, f"{message}: of its batch {message.batch} only a part is stored: {stored}"
                    )

    def missing(self) -> list[Sent]:
        """What must have come to its end, and has not."""
        return self.desk.missing(self) + [
            message
            for message in self.sent.values()
            if message.must and message.number not in self.delivered and not self.decisions.ended(message.number)
        ]


def body_of(record: bytes) -> bytes:
    """The body in a record."""
    at = 84 + 12 * (record[39] >> 4 & 1) + 12 * (record[39] >> 5 & 1)
    size = int.from_bytes(record[at : at + 4], "big")
    return record[at + 4 : at + 4 + size]
