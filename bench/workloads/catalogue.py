"""All workloads by name, in the order in which ``all`` runs them."""

from __future__ import annotations

from collections.abc import Callable

from bench.figures.results import Section
from bench.running.session import Session
from bench.workloads import cancel, crash, disk, hot_second, lateness, pending, pop, profile, send, wheel

__all__ = ["SITTING", "WORKLOADS"]

SITTING = (
    "sitting",
    "the comparison with Apache within --minutes: worst rows first, systems stay warm (not part of all)",
)

WORKLOADS: dict[str, tuple[str, Callable[[Session], Section]]] = {
    "send": ("accepted sends a second: kinds, senders, flush modes", send.run),
    "lateness": ("how late delayed messages come, at the broker and at the consumer", lateness.run),
    "sustained": ("lateness at 20,000 messages a second, held for ten minutes", lateness.sustained),
    "hot-second": ("very many messages due at one moment, and others around it", hot_second.run),
    "restart": (
        "a stop, and a start until the first send and the first delivery, with messages pending",
        pending.restart,
    ),
    "memory": ("memory, disk and idle processor time with messages pending", pending.memory),
    "crash": ("kill -9 under load: lost, repeated, longest lateness", crash.run),
    "cancel": ("1,000,000 pending messages cancelled by a query while others are sent and come due", cancel.run),
    "pop": ("popping: messages a second, lateness of redeliveries, memory", pop.run),
    "profile": ("our processor time at 20,000 messages a second, by thread, code and stage", profile.run),
    "wheel": ("the timing wheel compared with heapq, sortedcontainers and asyncio, in one process", wheel.run),
    "disk": ("the spill journal compared with the bare disk", disk.run),
}
