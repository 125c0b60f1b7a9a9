"""Delay keys: a name that the sender gives (``__DELAYKEY``), unique within its topic while the message is pending.

The sender of a second message with a key says what happens (``__DELAYKEY_MODE``)::

    reject   (default) the second one is refused, the first one stays
    keep     the second one gets the answer of the first (SEND_OK, the same message id), and the first one stays
    replace  the first message gets body, properties and due time of the second; never both, never none

The table (`broker_plugin.pending.key_table`) keeps a key until some hours after its message was due, so that a query by
key is still answered then. The delay store knows whether a message is pending; it is asked only for keys in the table.
The row of a message with a key (folder ``keys``) is written before its frame is journalled. A start fills the table
from the rows, and from the records that were journalled after the last checkpoint.

A key is unique on one broker. A topic on several brokers may have it once on each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broker_plugin.pending.key_table import KeyTable
from broker_plugin.pending.records import accepted_ms, key_hash
from remoting.messages.message import RecordError, record_fields
from remoting.messages.properties import DELAY_KEY, DELAY_KEY_MODE, get_property
from store.disk.errors import StoreError, StoreFullError
from store.put.plugin_api import Held, PutStatus, Refused, Unsettled
from store.spill.rows.model import Found
from store.spill.state.message_rows import MessageRow

if TYPE_CHECKING:
    from broker_plugin.pending.parts import Delivery
    from store.spill.spill_store import SpillStore
    from store.spill.state.message_rows import MessageRows

__all__ = ["KEYS_MAX", "UNKNOWN_VERSION", "DelayKeys", "FirstStays", "Free", "Taken", "UnderWay", "unsettled"]

KEYS_MAX = 1_000_000
"""Most keys in the table (24 MB)."""
KEY_BYTES_MAX = 1024
EVICTED_AT_ONCE = 2048
MODES = ("reject", "keep", "replace")
UNKNOWN_VERSION = -1
"""Version of a message that is not journalled yet: a replacement must look it up again."""


class FirstStays:
    """The first message stays: the second sender gets the answer of the first one."""

    __slots__ = ("due_ms", "offset")

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = offset
        self.due_ms = due_ms


class Free:
    """The key, with this ``hash``, is free; 0: the message has no key."""

    __slots__ = ("hash",)

    def __init__(self, hash_: int) -> None:
        self.hash = hash_


class Taken:
    """The key's pending message is to be replaced."""

    __slots__ = ("found", "hash", "record")

    def __init__(self, hash_: int, found: Found, record: bytes) -> None:
        self.hash = hash_
        self.found = found
        self.record = record


class UnderWay:
    """The key's message is not journalled yet: it belongs to this turn, or to a large batch that is being checked."""

    __slots__ = ("delay_id", "due_ms", "hash", "key", "mode")

    def __init__(self, hash_: int, delay_id: int, due_ms: int, key: str, mode: str) -> None:
        self.hash = hash_
        self.delay_id = delay_id
        self.due_ms = due_ms
        self.key = key
        self.mode = mode


class DelayKeys:
    """Decides about messages with a delay key. The methods are grouped: network loop only, and any thread."""

    def __init__(
        self, spill: SpillStore, sweeper: Delivery, rows: MessageRows, *, keys_max: int = KEYS_MAX, keep_ms: int = 0
    ) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self.rows = rows
        self._keys_max = keys_max
        self._keep_ms = keep_ms
        self._lock = threading.Lock()
        self._table = KeyTable()
        self._under_way: set[int] = set()  # delay ids that are held and not journalled yet
        self._before: dict[
            int, tuple[int, int]
        ] = {}  # of these and the last turn's: id and due time of who had its key
        self._now_ms = 0
        self.fresh: list[tuple[int, int, int]] = []
        """Messages with a key that this turn holds: hash, delay id and due time each."""
        self._journalled: dict[int, tuple[int, int, int]] = {}  # by delay id, of the one before it

    def load(self, rows: Iterable[MessageRow], records: Iterable[tuple[int, int, bytes]]) -> None:
        """Fill the table at open: from rows, then from (due, delay id, record) of messages whose rows may be missing.

        A power cut may have taken the row of a message that is there. It is written again, because after the next
        checkpoint a start reads only the rows. Raises StoreError.
        """
        lacking: list[MessageRow] = []
        for row in rows:
            if row.key_hash:
                self._table.put(row.key_hash, row.delay_id, row.due_ms)
        for due_ms, delay_id, record in records:
            try:
                topic, _, text = record_fields(record)
            except RecordError:
                continue
            key = get_property(text, DELAY_KEY)
            if key:
                hash_ = key_hash(topic, key)
                if self._table.get(hash_) != (delay_id, due_ms):
                    lacking.append(MessageRow(delay_id, due_ms, accepted_ms(record), hash_, 0, 0))
                self._table.put(hash_, delay_id, due_ms)
        if lacking:
            with suppress(StoreFullError):
                self.rows.add(lacking)

    def __len__(self) -> int:
        return len(self._table)

    # ------------------------------------------------------------------------------------------------ network loop

    def admit(
        self, topic: str, text: str, now_ms: int, *, held: bool = True
    ) -> Free | Taken | FirstStays | UnderWay | Refused:
        """Decide about a message whose properties contain the name of the delay key somewhere.

        A message that is due already is not ``held``; it needs no room in the table.
        """
        key = get_property(text, DELAY_KEY)
        if key is None:
            return Free(0)
        if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
            return Refused(PutStatus.MESSAGE_ILLEGAL, f"{DELAY_KEY} has more than {KEY_BYTES_MAX} bytes: {key[:40]!r}…")
        mode = get_property(text, DELAY_KEY_MODE) or MODES[0]
        if mode not in MODES:
            return Refused(PutStatus.MESSAGE_ILLEGAL, f"{DELAY_KEY_MODE} is {', '.join(MODES)}, found {mode[:40]!r}")
        hash_ = key_hash(topic, key)
        with self._lock:
            known = self._table.get(hash_)
        if known is not None:
            if known[0] in self._under_way:
                return UnderWay(hash_, *known, key, mode)
            taken = self._look(hash_, known[0], topic, key)
            if isinstance(taken, Refused):
                return taken
            if taken is not None:
                return _second(taken, key, mode)
        elif held and len(self._table) >= self._keys_max and not self.evict(now_ms):
            return Refused(
                PutStatus.SERVICE_NOT_AVAILABLE,
                f"{len(self._table)} delay keys are known, at most {self._keys_max} are possible "
                "(timewheelDelayKeysMax)",
            )
        return Free(hash_)

    def _look(self, hash_: int, delay_id: int, topic: str, key: str) -> Taken | Refused | None:
        """Look up the key's message; None if it is not pending, or if it has another key with the same hash."""
        with self._spill.lock:
            self._sweeper.publish_all()
            try:
                found = self._spill.find(delay_id)
                if found is None or found.done:
                    return None
                record = self._spill.read((found.ref,))[0]
                its_topic, _, text = record_fields(record)
            except (StoreError, RecordError) as error:
                return Refused(PutStatus.SERVICE_NOT_AVAILABLE, f"the message with the delay key {key[:80]!r}: {error}")
        if (its_topic, get_property(text, DELAY_KEY)) != (topic, key):
            return None  # another key with the same hash (chance 2**-64): its entry will be overwritten
        return Taken(hash_, found, record)

    def took(self, hash_: int, delay_id: int, due_ms: int, now_ms: int) -> None:
        """Note a message with a key that this turn holds."""
        with self._lock:
            before = self._table.get(hash_)
            self._table.put(hash_, delay_id, due_ms)
        if before is not None:
            self._before[delay_id] = before
        self.fresh.append((hash_, delay_id, due_ms))
        self._now_ms = now_ms
        self._under_way.add(delay_id)

    def forget(self, delay_id: int) -> None:
        """Forget a message of this turn, or of the one just journalled: it is not held after all."""
        self._under_way.discard(delay_id)
        gone = [entry for entry in self.fresh if entry[1] == delay_id]
        if gone:
            self.fresh = [entry for entry in self.fresh if entry[1] != delay_id]
        elif delay_id in self._journalled:
            gone = [self._journalled.pop(delay_id)]
        self.forget_all(gone)

    def forget_all(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Forget these (hash, delay id, due), which are not held after all. Keys go back to their earlier messages."""
        for hash_, delay_id, _ in entries:
            self._under_way.discard(delay_id)
            before = self._before.pop(delay_id, None)
            if before is not None:
                self.restore(hash_, delay_id, *before)
                continue
            with self._lock:
                self._table.remove(hash_, delay_id)

    def restore(self, hash_: int, delay_id: int, before_id: int, due_ms: int) -> None:
        """Give a key back to ``before_id``, its message before ``delay_id``, which is refused."""
        with self._lock:
            known = self._table.get(hash_)
            if known is None or known[0] != delay_id:
                return
            self._table.put(hash_, before_id, due_ms)
        with suppress(StoreError):  # without the row the next start takes the key for a free one
            self.write_other(hash_, before_id, due_ms)

    def forget_turn(self) -> None:
        """Forget all messages of this turn, because it failed."""
        fresh, self.fresh = self.fresh, []
        self.forget_all(fresh)

    def cut(self, begin: int) -> list[tuple[int, int, int]]:
        """Take the messages from place ``begin`` on out of this turn; returns them for `join`."""
        fresh = self.fresh[begin:]
        del self.fresh[begin:]
        return fresh

    def join(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Make messages that were cut out of another turn a part of this one."""
        self.fresh += entries

    def is_of(self, hash_: int, delay_id: int, due_ms: int) -> None:
        """Note the message that has a key now."""
        with self._lock:
            self._table.put(hash_, delay_id, due_ms)

    def write(self, more: Sequence[tuple[int, int, int]] = ()) -> None:
        """Write the rows of this turn, and of ``more`` (hash, delay id, due). Before its frame. Raises StoreError."""
        fresh, now_ms = [*self.fresh, *more], self._now_ms
        if fresh:
            self.rows.add([MessageRow(delay_id, due_ms, now_ms, hash_, 0, 0) for hash_, delay_id, due_ms in fresh])

    def write_other(self, hash_: int, delay_id: int, due_ms: int) -> None:
        """Write a row for a key whose message has another id than this turn's rows say. Raises StoreError."""
        self.rows.add((MessageRow(delay_id, due_ms, self._now_ms, hash_, 0, 0),))

    def committed(self) -> None:
        """Note that this turn is journalled."""
        # The turn before can no longer be refused: who had its keys earlier need not be known any more.
        for delay_id in self._journalled:
            self._before.pop(delay_id, None)
        self._journalled = {entry[1]: entry for entry in self.fresh}
        self._under_way.difference_update(self._journalled)
        self.fresh = []

    # ------------------------------------------------------------------------------------------------ any thread

    def offset_of(self, topic: str, key: str) -> int:
        """The delay id of a key's latest message; 0 if it is not known."""
        return self.owner(key_hash(topic, key))

    def written_of(self, topic: str, key: str) -> int:
        """The delay id of a key's latest message by the rows on disk; 0 if they do not have the key. Reads files."""
        row = self.rows.find_key(key_hash(topic, key))
        return 0 if row is None else row.delay_id

    def owner(self, hash_: int) -> int:
        """`offset_of` for the hash of a key."""
        with self._lock:
            known = self._table.get(hash_)
        return 0 if known is None else known[0]

    def moved(self, topic: str, text: str, delay_id: int, due_ms: int, now_ms: int) -> None:
        """Note the new due time of a moved message: its row must not become old before that. Raises StoreError."""
        key = get_property(text, DELAY_KEY)
        if key is None:
            return
        hash_ = key_hash(topic, key)
        self.rows.add((MessageRow(delay_id, due_ms, now_ms, hash_, 0, 0),))
        with self._lock:
            self._table.put(hash_, delay_id, due_ms)

    def evict(self, now_ms: int) -> int:
        """Forget some keys whose messages were due long enough ago and are not pending; returns how many."""
        keep_ms = 0 if len(self._table) >= self._keys_max else self._keep_ms
        with self._lock:
            old = self._table.due_before(now_ms - keep_ms, EVICTED_AT_ONCE)
        gone = 0
        for hash_, delay_id in old:
            with suppress(StoreError):  # if it cannot be looked up now, it may be pending
                if not self.is_pending((delay_id,)):
                    with self._lock:
                        self._table.remove(hash_, delay_id)
                    gone += 1
        return gone

    def is_pending(self, ids: Sequence[int]) -> bool:
        """True if any of these messages is pending."""
        for delay_id in ids:
            with self._spill.lock:
                found = self._spill.find(delay_id)
            if delay_id in self._under_way if found is None else not found.done:
                return True
        return False


def unsettled(first: UnderWay, decide: Callable[[Taken | FirstStays | Refused], Held | Refused]) -> Unsettled:
    """The answer for a second message while the first one with its key is not journalled: decide after that.

    Within one batch, ``settle`` decides as if the second message had come after the first.
    """
    found = Found(first.delay_id, 0, first.due_ms, UNKNOWN_VERSION, False)
    second = _second(Taken(first.hash, found, b""), first.key, first.mode, "another message of the batch")
    remark = f"a message with the delay key {first.key[:80]!r} is being accepted right now: try again"
    return Unsettled(PutStatus.SERVICE_NOT_AVAILABLE, remark, first.delay_id, lambda: decide(second))


def _second(taken: Taken, key: str, mode: str, whose: str = "a pending message") -> Taken | FirstStays | Refused:
    found = taken.found
    if mode == "keep":
        return FirstStays(found.delay_id, found.due_ms)
    if mode == "replace":
        return taken
    return Refused(
        PutStatus.MESSAGE_ILLEGAL,
        f"the delay key {key[:80]!r} is that of {whose}, due at {found.due_ms}: set {DELAY_KEY_MODE} to keep or "
        "replace to say which of the two stays",
    )
