"""The part of the CommitLog that is written but may not be durable yet.

The kernel drops dirty pages when a sync fails, so a second sync that succeeds proves nothing. Written bytes are
therefore kept in memory (up to `KEPT_BYTES_MAX`) until a sync covers them. After a failed sync they are written again
before the next one, and until that succeeds nothing can be appended (``failed``). If more bytes than this were
unsynced, the log stays failed until it is opened again and recovery has seen what the disk really holds.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from store.disk.errors import StoreError, SyncFailedError
from store.disk.files import Files
from store.disk.segments import Segment
from store.log.chunks import Chunks
from store.log.log_reader import LogReader

__all__ = ["KEPT_BYTES_MAX", "SyncedLog"]

KEPT_BYTES_MAX = 64 << 20
"""Most bytes that are kept in memory until they are durable."""


class SyncedLog(LogReader):
    """A log that knows how far it is durable. `sync` is called by the flusher, everything else by any thread."""

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        super().__init__(files, directory, segment_bytes)
        self._sync_lock = threading.Lock()
        self._synced = self._begin
        self._directory_dirty = False
        self._kept: deque[tuple[int, Segment, bytearray]] = deque()  # (end offset, segment, what was written)
        self._kept_in = 0  # bytes that went into _kept, counted by the appender
        self._kept_out = 0  # bytes that left it, counted by the syncer
        self._unkept_end = 0  # end of what was written last without being kept
        self._sync_failed = False

    @property
    def written(self) -> int:
        """The same as ``end``, for the flusher."""
        return self._end

    @property
    def synced(self) -> int:
        """Everything below this offset is durable."""
        return self._synced

    @property
    def failed(self) -> bool:
        """True if a sync has failed and its bytes are not on disk yet: nothing may be appended."""
        return self._sync_failed

    def sync(self) -> None:
        """Make everything written durable. Raises `SyncFailedError`; see the top of this file for what then holds."""
        with self._sync_lock:
            target = self._end
            if self._sync_failed:
                self._rewrite()
                target = self._end
            elif target == self._synced:
                return
            try:
                if self._directory_dirty:
                    # Cleared before the sync: a segment that is made meanwhile sets it again.
                    self._directory_dirty = False
                    self._files.sync_dir(self.directory)
                for segment in self._between(self._synced, target):
                    segment.file.sync()
            except StoreError:
                self._directory_dirty = True
                self._sync_failed = True
                raise
            self._synced = target
            self._sync_failed = False
            self._forget(target)

    def _forget(self, target: int) -> None:
        """Free the memory of bytes that are durable now."""
        kept = self._kept
        while kept and kept[0][0] <= target:
            self._kept_out += len(kept.popleft()[2])

    def _between(self, start: int, end: int) -> list[Segment]:
        """The segments that hold bytes of a range."""
        size = self.segment_bytes
        first = start - start % size
        return [segment for at in range(first, end, size) if (segment := self._segments.get(at)) is not None]

    def _rewrite(self) -> None:
        """Write all bytes that are not durable again, from memory. Raises SyncFailedError if some were not kept."""
        if self._unkept_end > self._synced:
            raise SyncFailedError(
                f"{self.directory}: a sync failed with more than {KEPT_BYTES_MAX} bytes not durable; "
                "the broker has to be restarted, so that recovery sees what the disk really holds"
            )
        for end, segment, buffer in list(self._kept):
            segment.file.pwrite(buffer, end - len(buffer) - segment.start)
        self._chunks = Chunks()  # since the sync failed, some of these bytes may have been read as they were before

    def _sync_file(self, segment: Segment) -> None:
        """Sync one file. Caller holds the sync lock."""
        try:
            segment.file.sync()
        except SyncFailedError:
            self._sync_failed = True
            raise
