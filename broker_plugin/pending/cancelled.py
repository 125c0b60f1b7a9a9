"""The rows of cancelled messages, and how rows are revoked.

The row of a cancelled message is written before its cancel is journalled, so that a kill leaves no cancel without one.
If the journal then refuses the cancel, the message will be delivered, and a second row voids the first. The disk may
refuse that row too. Then it is owed: it is written as soon as possible, and before any other row. So rows that should
be void are at the end of the file, where a start looks for them (`MessageRows.void_tail`). Until then `find` does not
return the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from broker_plugin.pending.records import key_hash
from remoting.messages.message import record_fields
from remoting.messages.properties import DELAY_KEY, get_property
from store.disk.errors import StoreError, StoreFullError
from store.spill.state.message_rows import MessageRow

if TYPE_CHECKING:
    from broker_plugin.pending.looking import Slice
    from store.spill.rows.model import Found
    from store.spill.state.message_rows import MessageRows

__all__ = ["CancelledRows", "topic_crc"]

_KEY_MARK = DELAY_KEY.encode()


class CancelledRows:
    """The rows of cancelled messages. Under the delivery lock, except `encoded`, `find`, `find_key` and `sync`."""

    def __init__(self, rows: MessageRows) -> None:
        self._rows = rows
        self._owed: dict[int, int] = {}
        """Delay id to due time (epoch ms) of messages that are not cancelled although a row says so."""

    @property
    def owed_count(self) -> int:
        """How many rows are still to be voided."""
        return len(self._owed)

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
        # Cancelling must work on a full disk as well. Without a row it is known for a shorter time.
        with suppress(StoreFullError):
            self.settle()
            self._rows.add_encoded(rows, ids, dues)
        try:
            yield
        except StoreError:
            self._owed.update(zip(ids, dues, strict=True))
            with suppress(StoreError):
                self.settle()
            raise
        for delay_id in ids:
            self._owed.pop(delay_id, None)

    def settle(self) -> None:
        """Void the rows that are owed. Raises StoreError."""
        if self._owed:
            self._rows.void(list(self._owed), list(self._owed.values()))
            self._owed.clear()

    def find(self, delay_id: int) -> MessageRow | None:
        """The row of a cancelled message; None if there is none. Reads files."""
        row = self._rows.find(delay_id)
        return None if delay_id in self._owed else row

    def find_key(self, topic: str, key: str) -> int:
        """The delay id of the last message with a key that was cancelled; 0 if none is known. Reads files."""
        row = self._rows.find_key(key_hash(topic, key))
        return 0 if row is None else row.delay_id

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
