"""What a plug-in can be asked of its pending messages: two protocols, no behaviour.

A plug-in that keeps messages until they are due and can show and change them is a `PendingPlugin`; what it can do is
its `PendingControl`. Doors (requests of the wire, HTTP, a command line) are built on this and on nothing else.

The values are those of `store.put.pending_values`: what each of them means stands there.

Threads: everything here may be called from any thread but the network loop's: changes wait for the disk, and all of it
takes the delivery lock for moments. `PendingControl.figures` and `PendingControl.topics` take no lock and read no disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from store.put.pending_values import (
    BULK_MAX,
    FORECAST_BARS_MAX,
    PAGE_MAX,
    Forecast,
    ForecastBar,
    PendingAnswer,
    PendingBulk,
    PendingCount,
    PendingError,
    PendingFigures,
    PendingName,
    PendingOrder,
    PendingPage,
    PendingQuery,
    PendingRow,
    PendingTopic,
    PendingVerb,
    PendingVerdict,
)
from store.put.plugin_api import Plugin

__all__ = [
    "BULK_MAX",
    "FORECAST_BARS_MAX",
    "PAGE_MAX",
    "Forecast",
    "ForecastBar",
    "PendingAnswer",
    "PendingBulk",
    "PendingControl",
    "PendingCount",
    "PendingError",
    "PendingFigures",
    "PendingName",
    "PendingOrder",
    "PendingPage",
    "PendingPlugin",
    "PendingQuery",
    "PendingRow",
    "PendingTopic",
    "PendingVerb",
    "PendingVerdict",
]


class PendingControl(Protocol):
    """What a plug-in can be asked of its pending messages. Any thread but the network loop's.

    StoreError from a change: it has to be asked for again. ``now_ms`` is the wall clock, epoch ms.
    """

    def get(self, name: PendingName) -> PendingAnswer:
        """Look at one message: `PendingVerdict.DONE` with row, properties and body if it is pending."""
        ...

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        """List what matches in (due, offset) order, at most `PAGE_MAX`. PendingError: bad limit or cursor."""
        ...

    def count(self, query: PendingQuery, after: str = "") -> PendingCount:
        """Count what matches; an empty query counts all, at once."""
        ...

    def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
        """Say how many come due when; at most `FORECAST_BARS_MAX` bars of equal length. PendingError: bad range."""
        ...

    def accepted_ms(self, offset: int) -> int:
        """When a message was accepted, epoch ms, also one that was delivered a moment ago; 0 if it is not known."""
        ...

    def last_due(self) -> int | None:
        """When the last pending message is due, epoch ms; None if there is none."""
        ...

    def change(self, order: PendingOrder, now_ms: int) -> PendingAnswer:
        """Do one change; durable when it returns."""
        ...

    def change_many(self, orders: Sequence[PendingOrder], now_ms: int, *, dry_run: bool = False) -> list[PendingAnswer]:
        """Do several, one answer each, in order; at most `BULK_MAX`. Not one transaction: each stands for itself.

        Durable when it returns. If the disk fails in between, or the time of a call is over, those that it could not
        change are REFUSED. With ``dry_run`` nothing is changed, and the answers are those of `get` without properties
        and body; REFUSED for what cannot be read now.
        """
        ...

    def change_matching(
        self,
        query: PendingQuery,
        verb: PendingVerb,
        now_ms: int,
        *,
        limit: int = BULK_MAX,
        dry_run: bool = True,
        after: str = "",
        due_ms: int | None = None,
        by_ms: int | None = None,
    ) -> PendingBulk:
        """Change what matches, up to ``limit`` messages; durable when it returns. PendingError for one that is too
        wide (`PendingQuery.width_fault`). It ends early when the time of a call is over, as where ``limit`` is reached.

        To purge what a deleted topic has left: `PendingVerb.CANCEL` with ``PendingQuery(topic=...)``.
        """
        ...

    def figures(self) -> PendingFigures:
        """Figures for dashboards."""
        ...

    def topics(self) -> Sequence[PendingTopic]:
        """What is pending by topic, largest first."""
        ...


@runtime_checkable
class PendingPlugin(Plugin, Protocol):
    """A plug-in whose pending messages can be seen and changed."""

    @property
    def pending(self) -> PendingControl:
        """What it can be asked; from ``open`` to ``close``."""
        ...
