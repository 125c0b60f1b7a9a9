"""Protocols by which a plug-in shows and changes its pending messages: two, without behaviour.

A plug-in that keeps messages until they are due, and can show and change them, is a `PendingPlugin`; the methods are in
its `PendingControl`. Requests on the wire, HTTP and the command line are all built on this and on nothing else.

`store.put.pending_values` describes the values.

Threads: any thread except the network loop's, because changes wait for the disk and every call takes the delivery lock
for moments. Only `PendingControl.figures` and `PendingControl.topics` take no lock and read no disk.
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
    """Shows and changes the pending messages of a plug-in. Any thread except the network loop's.

    A change that raises StoreError has to be requested again. ``now_ms`` is the wall clock, epoch ms.
    """

    def get(self, name: PendingName) -> PendingAnswer:
        """Look at one message: `PendingVerdict.DONE` with row, properties and body if it is pending."""
        ...

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        """List matching messages in (due, offset) order, at most ``limit``. Raises PendingError for a bad argument.

        ``limit`` is 1 to `PAGE_MAX`; ``after`` is the ``next`` of the page before.
        """
        ...

    def count(self, query: PendingQuery, after: str = "") -> PendingCount:
        """Count matching messages; an empty query counts all without going through them. Raises PendingError."""
        ...

    def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
        """Count messages by due time, in at most `FORECAST_BARS_MAX` bars of equal length. Raises PendingError."""
        ...

    def accepted_ms(self, offset: int) -> int:
        """When a message was accepted, epoch ms; also of one just delivered. 0 if that is not known."""
        ...

    def last_due(self) -> int | None:
        """The latest due time of all pending messages, epoch ms; None if nothing is pending."""
        ...

    def change(self, order: PendingOrder, now_ms: int) -> PendingAnswer:
        """Make one change; durable when it returns. Raises StoreError."""
        ...

    def change_many(self, orders: Sequence[PendingOrder], now_ms: int, *, dry_run: bool = False) -> list[PendingAnswer]:
        """Make several changes, at most `BULK_MAX`; returns one answer each, in order. It is not a transaction.

        Durable when it returns. If the disk fails in between, or the call has run for too long, the orders that are
        left are REFUSED. With ``dry_run`` nothing is changed: the answers are those of `get` without properties and
        body, and REFUSED for a message that cannot be read now.
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
        """Change up to ``limit`` matching messages; durable when it returns. After too long a time it ends early.

        Either way ``next`` of the answer goes on behind the last message. Raises PendingError for a query that is too
        wide (`PendingQuery.width_fault`).

        To purge the messages of a deleted topic: `PendingVerb.CANCEL` with ``PendingQuery(topic=...)``.
        """
        ...

    def figures(self) -> PendingFigures:
        """Figures for dashboards."""
        ...

    def topics(self) -> Sequence[PendingTopic]:
        """Pending messages by topic, largest first."""
        ...


@runtime_checkable
class PendingPlugin(Plugin, Protocol):
    """A plug-in whose pending messages can be seen and changed."""

    @property
    def pending(self) -> PendingControl:
        """Shows and changes them; usable from ``open`` to ``close``."""
        ...
