"""Every error that the store raises on purpose; anything else that escapes is a bug.

StoreError
├── StoreLockedError     the directory belongs to another process
├── StoreFormatError     a file of another version, another store, or another configuration
├── StoreCorruptError    bytes that cannot be what we wrote, with file and offset
├── StoreFullError       no room for what was asked
├── StoreDoubtError      refused, but a crash may bring it back
├── SyncFailedError      a sync failed, so nothing behind it may be acknowledged
└── StoreClosedError     used after ``close()``
"""

from __future__ import annotations

__all__ = [
    "StoreClosedError",
    "StoreCorruptError",
    "StoreDoubtError",
    "StoreError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "SyncFailedError",
]


class StoreError(Exception):
    """Base of the store's errors. The text says what was wrong, with the value, and what to do."""


class StoreLockedError(StoreError):
    """The store directory is in use by another process."""


class StoreFormatError(StoreError):
    """A file has another format version, belongs to another store, or contradicts the configuration."""


class StoreCorruptError(StoreError):
    """Bytes on disk that cannot be what was written; the text names file and offset."""


class StoreFullError(StoreError):
    """The disk (or the configured share of it) has no room for this write."""


class StoreDoubtError(StoreError):
    """A write failed, and what it has left could not be cleared: it does not count, but after a crash it may."""


class SyncFailedError(StoreError):
    """A sync failed: what it covered must count as not written until written and synced again."""


class StoreClosedError(StoreError):
    """The store was used after it had been closed."""
