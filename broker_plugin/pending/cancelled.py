"""The rows of cancelled messages, and how rows are revoked.

The row of a cancelled message is written before its cancel is journalled, so that a kill leaves no cancel without one.
If the journal then refuses the cancel, the message will be delivered, and a second row voids the first. The disk may
refuse that row too. Then it is owed: it is written as soon as possible, and before any other row. So rows that should
be void are at the end of the file, where a start looks for them (`MessageRows.void_tail`). Until then `find` does not
return the row.

A full disk refuses the row, but the message is cancelled all the same. Its row is kept in memory then, up to
`LACKING_MAX` of them, and written as soon as there is room: `AT_ONCE` of them with each further cancel and, slice by
slice, by `DeskRooms.tidy`. No hold of the delivery lock writes more, so that no delivery waits for them. Without a row
nobody can tell a cancelled message from one whose delivery the log has lost or cannot read: it is not known then which
of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from broker_plugin.pending.records import key_hash
from remoting.messages.message import record_fields
from remoting.messages.properties import DELAY_KEY, get_property
from store.disk.errors import StoreError, StoreFullError
from store.spill.state.message_rows import decoded_rows

if TYPE_CHECKING:
    from broker_plugin.pending.looking import Slice
    from store.spill.rows.model import Found
    from store.spill.state.message_rows import MessageRow, MessageRows

__all__ = ["CancelledRows", "topic_crc"]

_KEY_MARK = DELAY_KEY.encode()
LACKING_MAX = 20_000
"""Most rows that wait in memory for room on the disk."""
AT_ONCE = 256
"""Rows that are written together: half a millisecond of work."""


class CancelledRows:
    """The rows of cancelled messages. Under the delivery lock, except `encoded`, `find`, `find_key` and `sync`."""

    def __init__(self, rows: MessageRows) -> None:
        self._rows = rows
        self._owed: dict[int, int] = {}
        """Delay id to due time (epoch ms) of messages that are not cancelled although a row says so."""
        self._lacking: dict[int, MessageRow] = {}
        """By delay id: rows of cancelled messages that a full disk has refused."""

    def encoded(self, found: Slice, now_ms: int) -> bytes:
        """Make the rows of a slice, for `noted`. Needs no lock."""
        topics, keys = [topic_crc(found.topic)] * len(found.ids), [0] * len(found.ids)
        for at, record in enumerate(found.records):
            if not found.topic or _KEY_MARK in record:
                topics[at], keys[at] = _topic_and_key(record)
        return self._rows.encoded_columns(found.ids, found.dues, now_ms, keys, found.versions, topics)

    def row(self, found: Found, record: bytes, now_ms: int) -> bytes:
        """Make the row of one message; ``record`` is empty if it cannot be read."""
        topic, key = _topic_and_key(record)
        return self._rows.encoded_columns([found.delay_id], [found.due_ms], now_ms, [key], [found.version], [topic])

    @contextmanager
    def noted(self, rows: bytes, ids: Sequence[int], dues: Sequence[int]) -> Iterator[None]:
        """Write rows, then run the block, which cancels the messages. If the block fails, the rows are voided.

        Raises StoreError, and then nothing is cancelled.
        """
        lacking: list[MessageRow] = []
        before = self._rows.written
        try:
            self.settle()
            # Again, because `settle` writes rows too: only rows of these messages may be voided.
            before = self._rows.written
            self._rows.add_encoded(rows, ids, dues)
        except StoreFullError:  # cancelling must work on a full disk as well
            lacking = decoded_rows(rows)
        except StoreError:
            self._owe(before, ids, dues)
            raise
        try:
            yield
        except StoreError:
            self._owe(before, ids, dues)
            raise
        # They are cancelled: an older row that says so need not be voided any more.
        for delay_id in ids:
            self._owed.pop(delay_id, None)
        for row in lacking[: LACKING_MAX - len(self._lacking)]:
            self._lacking[row.delay_id] = row

    def _owe(self, before: int, ids: Sequence[int], dues: Sequence[int]) -> None:
        """Void the rows of messages that are not cancelled, if any was written since ``before`` rows were."""
        if self._rows.written == before:
            return
        self._owed.update(zip(ids, dues, strict=True))
        with suppress(StoreError):
            self.settle()

    def settle(self) -> bool:
        """Void the rows that are owed, then write some of those that are lacking; True if more of them are.

        Raises StoreError.
        """
        while self._owed:
            owed = dict(islice(self._owed.items(), AT_ONCE))
            self._rows.void(list(owed), list(owed.values()))
            for delay_id in owed:
                del self._owed[delay_id]
        if self._lacking:
            rows = list(islice(self._lacking.values(), AT_ONCE))
            self._rows.add(rows)
            for row in rows:
                del self._lacking[row.delay_id]
        return bool(self._lacking)

    def find(self, delay_id: int) -> MessageRow | None:
        """The row of a cancelled message; None if there is none. Reads files."""
        row = self._lacking.get(delay_id) or self._rows.find(delay_id)
        return None if delay_id in self._owed else row

    def find_key(self, topic: str, key: str) -> int:
        """The delay id of the last message with a key that was cancelled; 0 if none is known. Reads files."""
        wanted = key_hash(topic, key)
        for row in reversed(list(self._lacking.values())):
            if row.key_hash == wanted:
                return row.delay_id
        found = self._rows.find_key(wanted)
        return 0 if found is None else found.delay_id

    def sync(self) -> None:
        """Make all rows durable. Raises SyncFailedError."""
        self._rows.sync()


@lru_cache(maxsize=1024)
def topic_crc(topic: str) -> int:
    """The topic's hash in the row of a cancelled message, 32 bits; never 0, which stands for an unreadable record."""
    return key_hash(topic, "") & 0xFFFFFFFF or 1


def _topic_and_key(record: bytes) -> tuple[int, int]:
    if not record:
        return 0, 0
    topic, _, text = record_fields(record)
    key = get_property(text, DELAY_KEY) if DELAY_KEY in text else None
    return topic_crc(topic), key_hash(topic, key) if key else 0
