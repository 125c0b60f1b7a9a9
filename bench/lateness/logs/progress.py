"""Reads how far a broker has delivered its fixed levels: ``config/delayOffset.json``, ours and Apache's."""

from __future__ import annotations

import json

from bench.lateness.logs.storage import storage_for

__all__ = ["queue_progress"]


def queue_progress(store: str, options: str = "") -> dict[int, int]:
    """Level to the queue offset of the next message to deliver; messages below are finished. Empty if unknown.

    Raises StorageError.
    """
    storage = storage_for(store, options)
    size = storage.sizes(f"{store}/config").get("delayOffset.json", 0)
    if not size:
        return {}
    file = storage.open(f"{store}/config/delayOffset.json")
    try:
        value = json.loads(file.read(0, size))
        return {int(level): int(number) for level, number in value.get("offsetTable", {}).items()}
    except ValueError:
        return {}  # half written, or another format: then lost messages are called overdue
    finally:
        file.close()
