"""The supervisor: starts the shards of a store, keeps them running, and ends them.

It moves no message. It holds the embedded name server, the links over which topics, groups and settings are made alike
on all shards, the one log, and the processes. See docs/shards.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.net.clock import monotonic_ms
from broker.shards.changes import SharedChanges
from broker.shards.draining import Draining, finish_taking_out
from broker.shards.front import ROUTES_MS, Front
from broker.shards.inheriting import inherit
from broker.shards.keeper import ShardKeeper, ShardState
from broker.shards.layout import SHARDS_MAX, Layout, shard_name
from broker.shards.processes import ShardProcess, start_shard
from broker.shards.start import Start, check_ports, own_settings, scrape_list
from broker.shards.summary import EVERY_MS, summary
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from store.disk.files import Files

__all__ = ["Supervisor"]

_LOG = logging.getLogger(__name__)

_STEP_S = 0.05
_LOOK_MS = 1_000


class Supervisor:
    """All shards of one store. Only the network loop uses it, except for the constructor.

    Args:
        config: The configuration of the whole.
        start: What each shard is started with.
        count: How many shards there are to be.
        connections_max: Most connections with the name server.

    Raises ConfigError if so many shards cannot be, StoreError for files that cannot be read or written.
    """

    def __init__(self, config: BrokerConfig, start: Start, count: int, connections_max: int = 1 << 30) -> None:
        self.config = config
        self._start = start
        self._files = Files()
        self._connections_max = connections_max
        self._shards_dir = config.store_dir / "shards"
        self._files.makedirs(self._shards_dir)
        self._unlock = self._files.lock(self._shards_dir / "lock")
        try:
            self.layout = Layout(self._files, config.store_dir)
            self.changes = SharedChanges(self._files, self._shards_dir / "changes.json")
            finish_taking_out(self.layout, self._files, self.changes)
            self.indexes = list(self.layout.choose(count, config.broker_name, self._admit))
            check_ports(config, self.indexes)
        except BaseException:
            self._unlock()
            raise
        self.ports: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self._processes: dict[int, ShardProcess] = {}
        self.keeper = ShardKeeper(self.indexes, self._launch, self._died, self.name)
        self._front: Front | None = None
        self._draining: Draining | None = None
        self._why_not = ""
        self._complete = False
        self._wake = asyncio.Event()

    def _admit(self, source: int, new: list[int]) -> None:
        check_ports(self.config, sorted({source, *new, *self.layout.members}))
        brokers = frozenset((self.config.broker_name, *map(self.name, range(SHARDS_MAX))))
        inherit(self._files, self.layout.directory, source, new, self.changes, brokers)

    def name(self, index: int) -> str:
        """A shard's broker name."""
        return shard_name(self.config.broker_name, index)

    @property
    def front(self) -> Front:
        """Name server and links. RuntimeError before `run`."""
        if self._front is None:
            raise RuntimeError("the supervisor does not run")
        return self._front

    # ------------------------------------------------------------------------------------------------ running

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Run until ``stop`` is set; ``ready`` gets the line that says that all shards serve.

        Raises StoreError if a shard cannot be started at first: then none runs.
        """
        self._front = Front(
            self.config,
            self._files,
            self.changes,
            name=self.name,
            ready=self._is_ready,
            members=lambda: list(self.layout.members),
            connections_max=self._connections_max,
        )
        self._draining = Draining(self.layout, self._files, self.changes, self._front, self.keeper, self.name)
        looks = asyncio.create_task(self._look())
        stopping = asyncio.create_task(self._on(stop))
        try:
            while not stop.is_set():
                self.keeper.step(monotonic_ms())
                if self._why_not:
                    raise StoreError(self._why_not)
                if not self._complete and not self.keeper.in_state(ShardState.DOWN, ShardState.STARTING):
                    self._complete = True
                    self._write_scrape_list()
                    self.front.listen()
                    ready(self.ready_line())
                await self._pause()
        finally:
            looks.cancel()
            stopping.cancel()
            await asyncio.gather(looks, stopping, return_exceptions=True)
            await self._end()

    async def _on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_STEP_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _end(self) -> None:
        """End all shards at once, and wait for them."""
        _LOG.info("ending")
        self.front.stop_listening()
        self.keeper.end_all()
        while not self.keeper.ended:
            self.keeper.step(monotonic_ms())
            await asyncio.sleep(0.005)
        await self.front.close()
        self._unlock()
        _LOG.info("ended")

    async def _look(self) -> None:
        """The work of every second, until it is cancelled."""
        counted_ms, counted = monotonic_ms(), dict(self.front.states)
        while True:
            await asyncio.sleep(_LOOK_MS / 1000)
            try:
                self.front.step(_LOOK_MS)
                for index in self.keeper.in_state(ShardState.DOWN, ShardState.STARTING):
                    if self._complete and self.keeper.down_ms(index, monotonic_ms()) > ROUTES_MS:
                        self.front.forget_routes(index)
                await self.front.ping()
                if (passed_ms := monotonic_ms() - counted_ms) >= EVERY_MS:
                    if line := summary(counted, self.front.states, passed_ms, self.name):
                        _LOG.info("%s", line)
                    counted_ms, counted = monotonic_ms(), dict(self.front.states)
                await self.front.catch_up()
                if self._draining is not None and self._complete:
                    await self._draining.look()
                    self._write_scrape_list()
            except Exception as error:
                _LOG.error("the check of the shards failed: %s", error, exc_info=not isinstance(error, StoreError))

    def _write_scrape_list(self) -> None:
        """Keep the list for Prometheus as the shards are."""
        path = self._shards_dir / "prometheus.json"
        listed = scrape_list(self.config, self.layout.members)
        if listed is not None:
            data = dumps(listed)
            if not self._files.exists(path) or self._files.read_file(path) != data:
                self._files.replace_file(path, data)
        elif self._files.exists(path):
            self._files.remove(path)

    def hang_up(self) -> None:
        """Have all shards read their files again (SIGHUP)."""
        for index in self.keeper.in_state(ShardState.SERVING):
            self._processes[index].hang_up()

    # ------------------------------------------------------------------------------------------------ shards

    def spec(self, index: int) -> dict[str, Any]:
        """Make the document that a shard's process starts with (`broker.cli.shard`)."""
        config = self.config
        own = {
            **self._start.settings,
            **self.front.settings,
            **own_settings(config, index, self.layout.directory(index), self.ports.get(index, 0)),
        }
        if self._files.exists(self.layout.drain_mark(index)):
            own["brokerPermission"] = "4"
        file = None if self._start.file is None else str(self._start.file)
        return {
            "file": file,
            "options": self._start.options,
            "settings": own,
            "embedded": config.namesrv_listen is not None,
        }

    def _launch(self, index: int) -> ShardProcess:
        self._files.makedirs(self.layout.directory(index))
        process = self._processes[index] = start_shard(self.name(index), self.spec(index), self.front.link(index))
        _LOG.info("%s is process %d", self.name(index), process.pid)
        return process

    def _died(self, index: int, _status: int) -> None:
        if not self._complete and not self._why_not and self.keeper.state(index) is not ShardState.ENDED:
            why = "; ".join(self._processes[index].last_lines[-1:]) or "see the log"
            self._why_not = f"{self.name(index)} could not be started, so none runs: {why}"

    def _is_ready(self, index: int, port: int, pending: int) -> None:
        self.ports[index], self.pending[index] = port, pending
        self.keeper.ready(index, monotonic_ms())
        _LOG.info("%s serves at port %d, %d pending", self.name(index), port, pending)
        self._wake.set()

    def ready_line(self) -> str:
        """The line that says that all shards serve, with their addresses."""
        config = self.config
        shards = [f"{self.name(index)} at {config.advertised}:{self.ports[index]}" for index in self.indexes]
        parts = [f"{len(shards)} shards", f"listening on {config.listen_host}", *shards]
        if config.namesrv_listen is not None:
            parts.append(f"name server on {config.namesrv_listen[0]}:{self.front.namesrv_port}")
        else:
            parts.append(f"name servers {';'.join(config.namesrv_addr)}")
        if config.http_listen is not None:
            host, port = config.http_listen[0], self.front.places[self.indexes[0]][1]
            parts.append(f"page and API of all shards on http://{host}:{port}/")
        parts.append(f"store {config.store_dir}")
        parts.append(f"{sum(self.pending.values())} pending")
        return "ready: " + ", ".join(parts)
