"""State shared by the handlers of the door: the broker (once it has recovered), its metrics, its readiness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from broker.door.history import LatenessHistory
from broker.metrics.exporter import Exporter
from broker.metrics.pending import oldest_overdue_ms
from http_door.work import BusyError, NotReadyError, Workroom
from store.disk.errors import StoreError
from store.put.pending_api import PendingControl, PendingError, PendingPlugin

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.core import BrokerCore

__all__ = ["BEHIND_MAX_MS", "BusyError", "DoorState", "NotReadyError", "WhoIsThere"]

WhoIsThere = Callable[[], Awaitable[Sequence[Mapping[str, str]]]]
"""Lists all shards: ``index``, ``name``, ``address`` (of clients), ``http`` (empty: it does not serve yet)."""
_P = ParamSpec("_P")
_T = TypeVar("_T")

BEHIND_MAX_MS = 10_000
"""Deliveries this late make the broker not ready (those that failed for their topic's sake do not count)."""
WAITING_MAX = 32
"""Most requests that wait for a thread of the door or run in one."""
WORK_S = 20.0
"""Longest time that a request may take."""


class DoorState:
    """The broker as the door sees it. Only the door's thread may call it, except where a method says otherwise."""

    def __init__(
        self, config: BrokerConfig, failure: Callable[[], BaseException | None], who: WhoIsThere | None = None
    ) -> None:
        self.config = config
        self.who = who
        """Lists the shards, if this broker is one of several."""
        self.running = False
        """True if the broker has started; set by the broker's thread."""
        self._failure = failure
        self._core: BrokerCore | None = None
        self._exporter: Exporter | None = None
        self._history: LatenessHistory | None = None
        self._workroom = Workroom()

    def attach(self, core: BrokerCore) -> None:
        """Take the recovered broker and begin to measure. Called by the broker's thread before others run."""
        self._exporter = Exporter(core)
        self._history = LatenessHistory(self._exporter.lateness)
        self._core = core

    @property
    def core(self) -> BrokerCore:
        """The broker. Raises NotReadyError."""
        if not self.running or self._core is None:
            raise NotReadyError("the broker is recovering or stopping")
        return self._core

    @property
    def control(self) -> PendingControl:
        """The interface for pending messages. Raises NotReadyError."""
        for plugin in self.core.plugins:
            if isinstance(plugin, PendingPlugin):
                return plugin.pending
        raise NotReadyError("no plug-in of this broker shows what is pending")

    @property
    def exporter(self) -> Exporter:
        """The metrics. Raises NotReadyError."""
        assert self.core
        assert self._exporter is not None
        return self._exporter

    @property
    def history(self) -> LatenessHistory:
        """The lateness of the last hours. Raises NotReadyError."""
        assert self.core
        assert self._history is not None
        return self._history

    def look_ahead(self) -> None:
        """Make one forecast in advance: the first one reads the indexes of all runs, and no request has to wait for it.

        Runs in a thread of its own.
        """
        with suppress(NotReadyError, PendingError, StoreError):
            now_ms = self.core.now_ms()
            self.control.forecast(now_ms, now_ms + 1, 1)

    def sample(self) -> None:
        """Sample the lateness for the history; call it every few seconds."""
        if self.running and self._history is not None and self._core is not None:
            self._history.sample(self._core.now_ms())

    async def work(self, work: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Run a function in a thread of the door. Raises BusyError, and what the function raises."""
        return await self._workroom.run(WAITING_MAX, WORK_S, work, *args, **more)

    def why_not_ready(self) -> list[str]:
        """Say why the broker is not ready; empty if it is. Runs in a worker thread of the door."""
        failure = self._failure()
        if failure is not None:
            return [f"the broker accepts no more messages: {failure}"]
        try:
            core = self.core
        except NotReadyError as error:
            return [str(error)]
        reasons = []
        refusal = core.store.disk_refusal()
        if refusal:
            reasons.append(refusal)
        elif core.store.writable().value:
            reasons.append("the store accepts no messages: it is closed, or a sync has failed")
        now_ms = core.now_ms()
        for plugin in core.plugins:
            if isinstance(plugin, PendingPlugin) and not plugin.pending.figures().failed:
                oldest_ms = oldest_overdue_ms(plugin.pending, now_ms)
                if oldest_ms is not None and now_ms - oldest_ms > BEHIND_MAX_MS:
                    late_s = (now_ms - oldest_ms) / 1000
                    reasons.append(f"deliveries are behind: the oldest message came due {late_s:.1f} s ago")
        return reasons
