"""Delay keys: a name of the sender's own (``__DELAYKEY``), unique within its topic while the message is pending.

What a second send with a key does says its sender (``__DELAYKEY_MODE``)::

    reject   (default) it is refused, the first message stays
    keep     it is answered like the first one (SEND_OK, the same message id), the first message stays
    replace  the first message gets body, properties and due time of the second; never both, never none

The table (`broker_plugin.pending.key_table`) has a key for longer than its message is pending: until some hours
after it was due, so that a question by key is answered then, too. Whether a message is pending is asked of the delay
store, and only for a key that is there already. Before a message with a key is journalled, its row is written
(folder ``keys``); a start fills the table from the rows, and from the records that were journalled behind the last
checkpoint.

A key is unique on one broker. A topic on several brokers has it once on each.
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
"""Keys that are known at once, at most (24 MB)."""
KEY_BYTES_MAX = 1024
EVICTED_AT_ONCE = 2048
MODES = ("reject", "keep", "replace")
UNKNOWN_VERSION = -1
"""That of a message which is not journalled yet: whoever replaces it reads it again."""


class FirstStays:
    """The first message stays: its sender is answered as the first one was."""

    __slots__ = ("due_ms", "offset")

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = offset
        self.due_ms = due_ms


class Free:
    """The key is free; ``hash`` stands for it, 0 if there is none."""

    __slots__ = ("hash",)

    def __init__(self, hash_: int) -> None:
        self.hash = hash_


class Taken:
    """The key's message is to be replaced."""

    __slots__ = ("found", "hash", "record")

    def __init__(self, hash_: int, found: Found, record: bytes) -> None:
        self.hash = hash_
        self.found = found
        self.record = record


class UnderWay:
    """The key's message is not journalled yet: it is of this turn, or of a large batch that is being looked at."""

    __slots__ = ("delay_id", "due_ms", "hash", "key", "mode")

    def __init__(self, hash_: int, delay_id: int, due_ms: int, key: str, mode: str) -> None:
        self.hash = hash_
        self.delay_id = delay_id
        self.due_ms = due_ms
        self.key = key
        self.mode = mode


class DelayKeys:
    """Decides about messages with a delay key. `admit` is the network loop's, the rest any thread's."""

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
        self._fresh: list[tuple[int, int, int]] = []  # (hash, delay id, due) of this turn
        self._journalled: dict[int, tuple[int, int, int]] = {}  # by delay id, of the one before it

    def load(self, rows: Iterable[MessageRow], records: Iterable[tuple[int, int, bytes]]) -> None:
        """Fill the table at open: from rows, then from (due, delay id, record) of what they may lack.

        A power cut may have taken a row whose message is there. It is written again, because the next checkpoint lets
        the next start read no more than the rows. Raises StoreError.
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
        """Decide about a message whose properties have the name of a delay key somewhere.

        One that is not to be ``held``, because it is due already, needs no room for its key.
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
        """Look whether a key's message is pending; None if it is not."""
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
            return None  # another key with the same hash: it is forgotten, 2**-64
        return Taken(hash_, found, record)

    def took(self, hash_: int, delay_id: int, due_ms: int, now_ms: int) -> None:
        """Note a message that this turn holds."""
        with self._lock:
            before = self._table.get(hash_)
            self._table.put(hash_, delay_id, due_ms)
        if before is not None:
            self._before[delay_id] = before
        self._fresh.append((hash_, delay_id, due_ms))
        self._now_ms = now_ms
        self._under_way.add(delay_id)

    def forget(self, delay_id: int) -> None:
        """Note that a message of this turn, or of the one that was just journalled, is not held after all."""
        self._under_way.discard(delay_id)
        gone = [entry for entry in self._fresh if entry[1] == delay_id]
        if gone:
            self._fresh = [entry for entry in self._fresh if entry[1] != delay_id]
        elif delay_id in self._journalled:
            gone = [self._journalled.pop(delay_id)]
        self.forget_all(gone)

    def forget_all(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Note that these (hash, delay id, due) are not held after all."""
        for hash_, delay_id, _ in entries:
            self._under_way.discard(delay_id)
            before = self._before.pop(delay_id, None)
            if before is not None:
                self.restore(hash_, delay_id, *before)
                continue
            with self._lock:
                self._table.remove(hash_, delay_id)

    def restore(self, hash_: int, delay_id: int, before_id: int, due_ms: int) -> None:
        """Have a key name again what was delivered or cancelled before a message that is refused took it."""
        with self._lock:
            known = self._table.get(hash_)
            if known is None or known[0] != delay_id:
                return
            self._table.put(hash_, before_id, due_ms)
        with suppress(StoreError):  # then the next start takes the key for one that nobody has
            self.write_other(hash_, before_id, due_ms)

    def forget_turn(self) -> None:
        """Note that nothing of this turn is held."""
        fresh, self._fresh = self._fresh, []
        self.forget_all(fresh)

    def cut(self, begin: int) -> list[tuple[int, int, int]]:
        """Take out of this turn what it holds from a place on."""
        fresh = self._fresh[begin:]
        del self._fresh[begin:]
        return fresh

    def join(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Make what was cut out of another turn a part of this one."""
        self._fresh += entries

    @property
    def fresh_count(self) -> int:
        """How many messages with a key this turn holds."""
        return len(self._fresh)

    def is_of(self, hash_: int, delay_id: int, due_ms: int) -> None:
        """Note whose a key is now."""
        with self._lock:
            self._table.put(hash_, delay_id, due_ms)

    def write(self, more: Sequence[tuple[int, int, int]] = ()) -> None:
        """Write the rows of this turn, and more (hash, delay id, due), before its frame is. Raises StoreError."""
        fresh, now_ms = [*self._fresh, *more], self._now_ms
        if fresh:
            self.rows.add([MessageRow(delay_id, due_ms, now_ms, hash_, 0, 0) for hash_, delay_id, due_ms in fresh])

    def write_other(self, hash_: int, delay_id: int, due_ms: int) -> None:
        """Write the row of a key whose message gets another id than this turn's rows say. Raises StoreError."""
        self.rows.add((MessageRow(delay_id, due_ms, self._now_ms, hash_, 0, 0),))

    def committed(self) -> None:
        """Note that this turn is journalled."""
        for delay_id in self._journalled:
            self._before.pop(delay_id, None)
        self._journalled = {entry[1]: entry for entry in self._fresh}
        self._under_way.difference_update(self._journalled)
        self._fresh = []

    # ------------------------------------------------------------------------------------------------ any thread

    def offset_of(self, topic: str, key: str) -> int:
        """The delay id of a key's latest message; 0 if it is not known."""
        return self.owner(key_hash(topic, key))

    def owner(self, hash_: int) -> int:
        """The same for a key that is named by its hash."""
        with self._lock:
            known = self._table.get(hash_)
        return 0 if known is None else known[0]

    def moved(self, topic: str, text: str, delay_id: int, due_ms: int, now_ms: int) -> None:
        """Note another due time of a message with a key: its row must not grow old before it. Raises StoreError."""
        key = get_property(text, DELAY_KEY)
        if key is None:
            return
        hash_ = key_hash(topic, key)
        self.rows.add((MessageRow(delay_id, due_ms, now_ms, hash_, 0, 0),))
        with self._lock:
            self._table.put(hash_, delay_id, due_ms)

    def evict(self, now_ms: int) -> int:
        """Forget some keys whose messages were due long enough ago and are not pending; answers how many."""
        keep_ms = 0 if len(self._table) >= self._keys_max else self._keep_ms
        with self._lock:
            old = self._table.due_before(now_ms - keep_ms, EVICTED_AT_ONCE)
        gone = 0
        for hash_, delay_id in old:
            with suppress(StoreError):  # of what cannot be looked at now it is not known
                if not self.is_pending((delay_id,)):
                    with self._lock:
                        self._table.remove(hash_, delay_id)
                    gone += 1
        return gone

    def is_pending(self, ids: Sequence[int]) -> bool:
        """Whether any of these messages is pending."""
        for delay_id in ids:
            with self._spill.lock:
                found = self._spill.find(delay_id)
            if delay_id in self._under_way if found is None else not found.done:
                return True
        return False


def unsettled(first: UnderWay, decide: Callable[[Taken | FirstStays | Refused], Held | Refused]) -> Unsettled:
    """Have a second message of one turn with a key wait for the first; of one batch it is as if it came after that."""
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
        f"the delay key {key[:80]!r} is that of {whose}, due at {found.due_ms}; {DELAY_KEY_MODE} keep or "
        "replace says what to do with it",
    )
