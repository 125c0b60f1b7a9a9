"""All workloads by name, in the order in which ``all`` runs them."""

from __future__ import annotations

from collections.abc import Callable

from bench.figures.results import Section
from bench.running.session import Session
from bench.workloads import cancel, crash, disk, hot_second, lateness, pending, pop, profile, send, wheel

__all__ = ["SITTING", "WORKLOADS"]

SITTING = ("sitting", "the table beside Apache again, in --minutes: worst rows first, systems stay warm (not in all)")

WORKLOADS: dict[str, tuple[str, Callable[[Session], Section]]] = {
    "send": ("sends accepted a second: kinds, senders, flush modes", send.run),
    "lateness": ("how late delayed messages come, at the broker and at the consumer", lateness.run),
    "sustained": ("the same at 20,000 a second, held for ten minutes", lateness.sustained),
    "hot-second": ("very many due at one moment, and others around it", hot_second.run),
    "restart": ("stop, and start to first send and first delivery, with messages pending", pending.restart),
    "memory": ("memory, disk and idle processor time with messages pending", pending.memory),
    "crash": ("kill -9 under load: lost, repeated, longest lateness", crash.run),
    "cancel": ("1,000,000 pending messages cancelled by a query while others are sent and come due", cancel.run),
    "pop": ("popping: messages a second, how late un-acknowledged ones come again, memory", pop.run),
    "profile": ("where our processor time goes at 20,000 a second: by thread and by code", profile.run),
    "wheel": ("the wheel beside heapq, sortedcontainers and asyncio, in one process", wheel.run),
    "disk": ("the bare disk beside the spill journal", disk.run),
}
