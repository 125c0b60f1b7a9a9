"""Goes over pending messages in key order by a query, a slice at a time; a cursor continues later.

Some messages can be neither compared with a query nor left out without a word, because nobody knows whether they match:

==================  ===========================================================================================
unreadable records  damaged, or the disk cannot read them now (a change or a count ends before the latter)
hidden rows         their page of a run can be neither read nor made again, so no scan finds them
==================  ===========================================================================================

A call goes on behind them, so that they hold up nothing else, and its answer says how many it has passed over (`Walk`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_plugin.pending.records import fitting, row_of
from broker_plugin.rules.properties import DUE_MAX_MS, own_properties_of
from broker_plugin.rules.ranges import KEY_MAX, Key
from remoting.messages.message import record_fields
from remoting.pending_rules import time_fault
from store.disk.errors import StoreClosedError, StoreError
from store.put.pending_api import PendingError, PendingQuery, PendingRow
from store.put.pending_cursor import cursor_place
from store.spill.rows.model import RecordCorruptError

if TYPE_CHECKING:
    from threading import RLock

    from broker_plugin.pending.parts import Delivery, Overdue
    from store.spill.spill_store import SpillStore
    from store.spill.state.hidden import HiddenRows

__all__ = ["Cursor", "Looked", "Looker", "Slice", "Unread", "Walk", "checked", "cursor_of", "limited", "shown"]

Cursor = Key
"""The key behind which to continue."""
SLICE = 256
"""Most messages looked at under one hold of the delivery lock; fewer if they would take longer than `HOLD_NS`."""
SLICE_MIN = 32
HOLD_NS = 2_000_000
"""Most processor time of one hold of the lock."""
SLICE_BYTES = 512 << 10
CALL_NS = 8_000_000_000
"""Most time that one call looks, and again that it changes; then it answers with a cursor. HTTP waits 20 s for both and
for the disk."""
READ_MAX = 20_000
"""Most messages that one call looks at if each must be read."""
TEXT_MAX = 32_767
"""Longest text of a condition; no property is longer."""
PROPERTIES_MAX = 32
_BITS_SHOWN = 128
_SHOWN = 3


class Looked:
    """One slice as it was read: ``texts`` and ``sizes`` as in `Slice`, ``versions`` only on request."""

    __slots__ = ("dues", "ids", "next", "refs", "sizes", "texts", "versions")

    def __init__(self, dues: list[int], ids: list[int], refs: list[int]) -> None:
        self.dues = dues
        self.ids = ids
        self.refs = refs
        self.texts: list[bytes] = []
        self.sizes: list[int] = []
        self.versions: list[int] = []
        self.next: Cursor | None = None

    def end(self, count: int, is_last: bool) -> None:
        """Keep the first ``count`` rows; the next slice begins behind them."""
        if count < len(self.refs):
            for column in (self.dues, self.ids, self.refs):
                del column[count:]
            is_last = False
        self.next = None if is_last else (self.dues[-1], self.ids[-1])


class Slice:
    """The matching messages of one slice; ``next`` is None behind the last message.

    Large ``records`` have no body (`SpillView.read_outlines`); ``sizes`` are those of the whole records. Both are empty
    if no record was read. ``unread`` are the keys of records that could not be read, some perhaps behind ``next``.
    """

    __slots__ = ("dues", "ids", "looked_at", "next", "records", "refs", "sizes", "topic", "unread", "versions")

    def __init__(self, looked_at: int, next_: Cursor | None, topic: str) -> None:
        self.topic = topic  # of all of them; empty: of several
        self.looked_at = looked_at
        self.next = next_
        self.dues: list[int] = []
        self.ids: list[int] = []
        self.refs: list[int] = []
        self.records: list[bytes] = []
        self.sizes: list[int] = []
        self.versions: list[int] = []
        self.unread: list[Cursor] = []

    def cut(self, most: int) -> None:
        """Keep the first ``most`` messages; the next slice begins behind the last of them."""
        if len(self.ids) > most:
            for column in (self.dues, self.ids, self.refs, self.records, self.sizes, self.versions):
                del column[most:]
            self.next = self.dues[-1], self.ids[-1]


@dataclass(frozen=True, slots=True)
class Unread:
    """How many messages a call has passed over, and a text for people about them; 0 and empty if there are none."""

    count: int
    remark: str


class Walk:
    """One call's way over the messages of a query: where it stands, and what it has passed over.

    What cannot be read is counted by the call that comes past its place: the counts of the calls of a query add up.
    """

    __slots__ = ("_begin", "_unread", "cursor", "looked_at", "query")

    def __init__(self, query: PendingQuery, cursor: Cursor | None) -> None:
        self.query = query
        self.cursor = self._begin = cursor
        self.looked_at = 0
        self._unread: set[Cursor] = set()  # a slice that was cut is in part looked at twice

    def took(self, found: Slice) -> None:
        """Go on behind a slice."""
        self.cursor = found.next
        self.looked_at += found.looked_at
        self._unread.update(found.unread)

    def pass_over(self, key: Cursor) -> None:
        """Note a message whose record cannot be understood."""
        self._unread.add(key)

    @property
    def span_ms(self) -> tuple[int, int]:
        """The first and the last due time (epoch ms) that this call may have come past; (0, -1) if none."""
        if self._begin is None:
            return 0, -1
        last_ms = DUE_MAX_MS if self.cursor is None else self.cursor[0]
        return self._begin[0], last_ms if self.query.due_to_ms is None else min(last_ms, self.query.due_to_ms - 1)

    def unread(self, hidden: Iterable[HiddenRows]) -> Unread:
        """What was passed over up to the cursor; ``hidden`` are the hidden rows of runs that reach into the span.

        Each call counts rows without a known key: one that came past them in an earlier process cannot be told from one
        that did not.
        """
        records = sorted(key for key in self._unread if self.cursor is None or key <= self.cursor)
        runs: Counter[str] = Counter()
        keys: list[Cursor] = []
        for rows in hidden:
            passed = [key for key in rows.keys if self._passed(key)]
            keys += passed
            if passed or rows.unknown:
                runs[rows.file] += len(passed) + rows.unknown
        return Unread(runs.total() + len(records), _remark(runs, sorted(keys), records))

    def _passed(self, key: Cursor) -> bool:
        """True if this call came past the place of a message that is due within the query's range."""
        to_ms = self.query.due_to_ms
        is_behind = self._begin is not None and self._begin < key
        return is_behind and (self.cursor is None or key <= self.cursor) and (to_ms is None or key[0] < to_ms)


def _remark(runs: Counter[str], keys: Sequence[Cursor], records: Sequence[Cursor]) -> str:
    parts: list[str] = []
    if runs:
        named = ", ".join(f"{count} in run {file}" for file, count in runs.most_common(_SHOWN))
        more = f" and more in {len(runs) - _SHOWN} other runs" if len(runs) > _SHOWN else ""
        offsets = [_offsets(keys)] if keys else []
        if unknown := runs.total() - len(keys):
            offsets.append(f"the offsets of {unknown} are not known")
        parts.append(
            f"{named}{more} ({'; '.join(offsets)}), where a page can be neither read nor made again: run `timewheel "
            "check DIR --repair`, then cancel by offset what it cannot make again"
        )
    if records:
        parts.append(f"{len(records)} whose records cannot be read ({_offsets(records)}): cancel them by offset")
    return "; ".join(parts)


def _offsets(keys: Sequence[Cursor]) -> str:
    named = ", ".join(f"{id_:#x} due at {due_ms}" for due_ms, id_ in keys[:_SHOWN])
    return f"{named} (epoch ms)" if len(keys) <= _SHOWN else f"{named} (epoch ms), …"


class Looker:
    """Reads slices of pending messages. Any thread; takes the delivery lock for each slice."""

    def __init__(self, spill: SpillStore, sweeper: Delivery, recovery: Overdue, lock: RLock) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._recovery = recovery
        self._lock = lock
        self.pause: Callable[[], object] = lambda: None
        """Called after each slice. A thread that takes a lock again at once keeps all others from getting it."""
        self.worked_ns: Callable[[], int] = lambda: 0
        """Processor time of the calling thread, ns."""
        self.passed_ns: Callable[[], int] = lambda: 0
        """The monotonic clock, ns."""
        self._cost_ns = HOLD_NS / SLICE

    def time_left(self) -> Callable[[], bool]:
        """Begin a call, or a part of it; returns a function that says whether there is still time."""
        end_ns = self.passed_ns() + CALL_NS
        return lambda: self.passed_ns() < end_ns

    def slice(
        self, query: PendingQuery, after: Cursor, limit: int = SLICE, *, records: bool = True, complete: bool = False
    ) -> Slice:
        """Look at the next few messages behind a key, until ``limit`` match.

        Without ``records`` a query for due times alone reads none. With ``complete`` the slice ends before a message
        that the disk cannot read now; StoreError if that is the first one. Else it leaves the message out.
        """
        with self._lock:
            seen = self.look(query, after, limit, records=records, complete=complete)
        found = self.matching(query, seen, limit)
        self.pause()
        return found

    @property
    def rows_at_once(self) -> int:
        """Most messages of the next slice: as many as one hold of the lock has time for."""
        return max(SLICE_MIN, min(SLICE, int(HOLD_NS / max(self._cost_ns, 1.0))))

    def worked(self, rows: int, begin_ns: int) -> None:
        """Learn what a hold of the lock cost; ``begin_ns`` is `worked_ns` at its beginning."""
        # A small slice would say more about the fixed cost of a hold than about that of a row.
        if rows >= SLICE_MIN:
            self._cost_ns += ((self.worked_ns() - begin_ns) / rows - self._cost_ns) / 8

    def look(
        self,
        query: PendingQuery,
        after: Cursor,
        limit: int = SLICE,
        *,
        records: bool = True,
        versions: bool = False,
        complete: bool = False,
    ) -> Looked:
        """Read the next slice, under the delivery lock; then call `matching`. Raises StoreError."""
        begin_ns = self.worked_ns()
        self._sweeper.publish_all()
        until_ms = DUE_MAX_MS + 1 if query.due_to_ms is None else query.due_to_ms
        wanted = min(self.rows_at_once, max(1, limit)) if query.is_of_due else self.rows_at_once
        columns = self._spill.scan(after, until_ms, wanted)
        seen = Looked(columns.dues, columns.ids, columns.refs)
        is_last = len(seen.refs) < wanted
        if records or not query.is_of_due:
            seen.texts, seen.sizes = self._read(seen, complete)
            seen.end(len(seen.texts), is_last)
        else:
            seen.end(len(seen.refs), is_last)
        if versions and seen.refs:
            seen.versions = self._spill.versions(seen.refs)
        self.worked(len(seen.refs), begin_ns)
        return seen

    def matching(self, query: PendingQuery, seen: Looked, limit: int = SLICE) -> Slice:
        """The first ``limit`` messages of a slice that match. Needs no lock."""
        found = Slice(len(seen.refs), seen.next, query.topic)
        found.dues, found.ids, found.refs, found.versions = seen.dues, seen.ids, seen.refs, seen.versions
        found.records, found.sizes = seen.texts, seen.sizes
        if b"" in seen.texts:
            keys = zip(seen.dues, seen.ids, strict=True)
            found.unread = [key for key, text in zip(keys, seen.texts, strict=True) if not text]
        if seen.texts:
            places = fitting(query, seen.texts)
            if len(places) < len(seen.refs):
                longs = seen.dues, seen.ids, seen.refs, seen.versions, seen.sizes
                found.dues, found.ids, found.refs, found.versions, found.sizes = (
                    [column[place] for place in places] if column else [] for column in longs
                )
                found.records = [seen.texts[place] for place in places]
        found.cut(max(1, limit))
        return found

    def _read(self, seen: Looked, complete: bool) -> tuple[list[bytes], list[int]]:
        """Read the first of these records, and their sizes; b"" for each that is damaged or cannot be read.

        With ``complete`` only those before the first that the disk cannot read now; StoreError if there are none. A
        damaged one is never read, however often it is tried, so it ends nothing.
        """
        if not seen.refs:
            return [], []
        try:
            return self._spill.read_outlines(seen.refs, SLICE_BYTES)
        except StoreError:
            records: list[bytes] = []
            sizes: list[int] = []
            for due_ms, id_, ref in zip(seen.dues, seen.ids, seen.refs, strict=True):
                try:
                    found = self._spill.read_outlines((ref,), SLICE_BYTES)
                except RecordCorruptError:
                    found = [b""], [0]
                except StoreClosedError:
                    raise
                except StoreError as error:
                    if complete and records:
                        break
                    if complete:
                        where = f"pending message {id_:#x}, due at {due_ms} (epoch ms)"
                        raise StoreError(f"{where}, cannot be read: {error}") from error
                    found = [b""], [0]
                records += found[0]
                sizes += found[1]
            return records, sizes

    def unread_of(self, walk: Walk) -> Unread:
        """What a call has passed over so far."""
        return walk.unread(self._spill.hidden_rows(*walk.span_ms) if self._spill.hides else ())

    def rows(
        self, query: PendingQuery, cursor: Cursor | None, limit: int, looked_at_max: int
    ) -> tuple[list[PendingRow], Cursor | None]:
        """List matching messages; returns rows and the cursor behind them (None at the end)."""
        rows: list[PendingRow] = []
        looked_at = 0
        has_time = self.time_left()
        while cursor is not None and len(rows) < limit and looked_at < looked_at_max and has_time():
            found = self.slice(query, cursor, limit - len(rows))
            cursor = found.next
            looked_at += found.looked_at
            for due_ms, delay_id, record, size in zip(found.dues, found.ids, found.records, found.sizes, strict=True):
                rows.append(self.row(record, size, delay_id, due_ms))
        return rows, cursor

    def row(self, record: bytes, size: int, delay_id: int, due_ms: int) -> PendingRow:
        """Make the row of a record; ``size`` is its full size, also if ``record`` has no body."""
        topic, _, text = record_fields(record)
        own = own_properties_of(text)
        failed = False
        if self._recovery.failed_count:
            with self._lock:
                failed = self._recovery.is_failed(topic, due_ms)
        return row_of(record, size, delay_id, 0 if own is None else own[1], due_ms, failed)


# ---------------------------------------------------------------------------------------- what comes from outside


def shown(number: int) -> str:
    """Write a number that a client sent. Of a huge one only its length is shown: its digits would take too long."""
    return str(number) if number.bit_length() < _BITS_SHOWN else f"a number of {number.bit_length()} bits"


def checked(query: PendingQuery) -> None:
    """Check a query. Raises PendingError for texts that are too long and for impossible times."""
    for name, text in (("topic", query.topic), ("tag", query.tag), ("key prefix", query.key_prefix)):
        if len(text) > TEXT_MAX:
            raise PendingError(f"a {name} of {len(text)} characters: no message has one of more than {TEXT_MAX}")
    if len(query.properties) > PROPERTIES_MAX:
        raise PendingError(f"{len(query.properties)} properties are asked for, at most {PROPERTIES_MAX} are possible")
    for what, first, last in (
        ("due", query.due_from_ms, query.due_to_ms),
        ("accepted", query.accepted_from_ms, query.accepted_to_ms),
    ):
        for value in (first, last):
            if value is not None and not 0 <= value <= DUE_MAX_MS + 1:
                raise PendingError(f"{what} time {shown(value)}: 0 to {DUE_MAX_MS + 1} ms (the year 9999) are possible")
            if value is not None and (fault := time_fault(f"{what} time", value)):
                raise PendingError(fault)
        if first is not None and last is not None and first >= last:
            raise PendingError(f"{what} times from {first} to {last}: the end must lie after the beginning")


def limited(limit: int, most: int) -> int:
    """Check a limit; returns it. Raises PendingError unless it is 1 to ``most``."""
    if not 1 <= limit <= most:
        raise PendingError(f"a limit of {shown(limit)}: 1 to {most} are possible")
    return limit


def cursor_of(query: PendingQuery, text: str) -> Cursor | None:
    """Read a cursor; the beginning of the query for an empty text. Raises PendingError."""
    begin = (-1 if query.due_from_ms is None else query.due_from_ms - 1, KEY_MAX)
    if not text:
        return begin
    return max(begin, cursor_place(text))  # the cursor of another query leads to nothing outside of this one
