"""The size of segments is settled by the first start, not by the first message that is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.disk.errors import StoreFormatError
from store.disk.files import Files
from store.message_store import MessageStore
from store.options import StoreOptions


def options(segment_bytes: int) -> StoreOptions:
    return StoreOptions(commit_log_segment_bytes=segment_bytes, consume_queue_segment_bytes=2_000)


@pytest.mark.parametrize("clean", [True, False])
def test_another_size_of_segments_is_refused_before_anything_was_put(tmp_path: Path, clean: bool) -> None:
    """What a plug-in holds was accepted because it fits a segment; a smaller one would never take it."""
    store = MessageStore.open(Files(), tmp_path, options(1 << 20), lambda: 1_000)
    store.start()
    if clean:
        store.close()
    else:
        store.flusher.stop()
        store.housekeeper.stop()
        store._release()
    with pytest.raises(StoreFormatError, match="mappedFileSizeCommitLog"):
        MessageStore.open(Files(), tmp_path, options(1 << 18), lambda: 1_000)
    again = MessageStore.open(Files(), tmp_path, options(1 << 20), lambda: 1_000)
    assert (again.commit_log.begin, again.commit_log.end, again.check()) == (0, 0, [])
    again.close()
