"""How far a broker says it has delivered its fixed levels: ``config/delayOffset.json``, ours and Apache's."""

from __future__ import annotations

import json

from bench.lateness.logs.storage import storage_for

__all__ = ["queue_progress"]


def queue_progress(store: str, options: str = "") -> dict[int, int]:
    """Level to the number of the next message that it will deliver; what lies below is finished. Empty if unknown."""
    storage = storage_for(store, options)
    size = storage.sizes(f"{store}/config").get("delayOffset.json", 0)
    if not size:
        return {}
    file = storage.open(f"{store}/config/delayOffset.json")
    try:
        value = json.loads(file.read(0, size))
        return {int(level): int(number) for level, number in value.get("offsetTable", {}).items()}
    except ValueError:
        return {}  # half written, or another format: then overdue messages are called overdue, and none lost
    finally:
        file.close()
