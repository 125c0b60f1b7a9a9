"""The door of an instance in the world of `tests.service.cluster_world`: a port, and time that is an argument.

Shard ``broker-e/0`` is the world's, owned by its only node: what waits is what the node has read, and a command over
HTTP is a record in the world's entry queue. The other shards are lists: ``broker-e/1`` is followed, ``broker-e/2`` is
somebody else's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from http_door.thread import DoorThread
from http_door.work import NotReadyError
from service.core.lines import Line, LineKind
from service.core.states import OwnerState
from service.door.api import ServiceApi
from service.door.app import make_app
from service.door.coverage import ShardSight, Sighting
from service.door.orders import OrderDesk
from service.door.view import ShardCare
from service.link.cluster import ClusterLink
from service.metrics.exposition import MetricsText
from service.running.instance_counts import InstanceCounts
from service.running.service import DelayService
from store.put.pending_api import PendingPage, PendingQuery, PendingRow
from store.put.pending_cursor import cursor_place, cursor_text
from tests.service.cluster_world import NAME, Node, World
from tests.support.door import Answer, ask
from tests.support.plain_pending import PlainPending, row
from timewheel_client import ChangeResult, RequestTimeoutError

__all__ = ["BASE_MS", "FAR", "FIRST", "FOLLOWED", "ME", "OTHERS", "DoorWorld", "placed"]

BASE_MS = 1_700_000_000_000
"""The world's time 0, epoch ms."""
ME, OTHERS = "192.0.2.1@me", "192.0.2.2@other"
FOLLOWED, FAR = "broker-e/1", "broker-e/2"
FIRST = 1 << 62
PATIENCE_MS = 30_000


class _Placed(PlainPending):
    """A list whose cursors are places, as those of a cache; each message has the key ``k1``."""

    def _matching(self, query: PendingQuery, rows: Sequence[PendingRow] | None = None) -> list[PendingRow]:
        return [] if {*query.properties} - {("KEYS", "k1")} else super()._matching(query, rows)

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        behind = cursor_place(after) if after else (-1, 0)
        rows = [found for found in self._matching(query) if (found.due_ms, found.offset) > behind]
        last = rows[limit - 1] if len(rows) > limit else None
        return PendingPage(
            rows=tuple(rows[:limit]), next=cursor_text(None if last is None else (last.due_ms, last.offset))
        )


def placed(rows: Sequence[PendingRow]) -> PlainPending:
    """A list whose cursors are places."""
    return _Placed(rows)


@dataclass
class SimView:
    """What the door asks of the instance."""

    world: DoorWorld
    name: str = ME
    topic: str = "TIMEWHEEL"
    roll_after_ms: int = 86_400_000
    tally: InstanceCounts = field(default_factory=InstanceCounts)
    begun: bool = True
    reasons: list[str] = field(default_factory=list)

    def sights(self) -> list[ShardSight]:
        """The three shards."""
        if not self.begun:
            raise NotReadyError("it has not begun")
        return self.world.sights()

    def care(self) -> Mapping[str, ShardCare]:
        """The followed one is looked after by us."""
        return {NAME: ShardCare(OTHERS, 2, 3), FOLLOWED: ShardCare(ME)}

    def why_not_ready(self) -> Sequence[str]:
        """What the test says."""
        return self.reasons


class SimOrders:
    """Sends commands into the world's entry queue, and lets time pass until the verdict stands there."""

    def __init__(self, world: DoorWorld) -> None:
        self._world = world

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.closed = True

    async def get(self, name: str) -> ChangeResult:
        return await self._of(name, LineKind.GET)

    async def cancel(self, name: str) -> ChangeResult:
        return await self._of(name, LineKind.CANCEL)

    async def now(self, name: str) -> ChangeResult:
        return await self._of(name, LineKind.MOVE, due_ms=BASE_MS)

    async def move(self, name: str, *, due_ms: int | None = None, by_ms: int | None = None) -> ChangeResult:
        return await self._of(name, LineKind.MOVE, due_ms=due_ms or 0, by_ms=by_ms or 0)

    async def _of(self, name: str, kind: LineKind, due_ms: int = 0, by_ms: int = 0) -> ChangeResult:
        if self._world.mute:
            await asyncio.Event().wait()
        return await asyncio.to_thread(self._world.command, name, kind, due_ms, by_ms)


class DoorWorld:
    """The port of an instance. ``forgotten``: shards of which nothing is known."""

    def __init__(self, folder: Path, *, token: str = "", closed: str = "", seed: int = 19) -> None:
        self.lock = threading.RLock()
        self.sim = World(seed)
        self.sim.faulty = False
        self.node = Node(self.sim, "n0")
        self.node.assigned = True
        self.closed = self.mute = False  # mute: no broker answers
        self.mine, self.followed = _Placed(), _Placed([row(n, self.at(1000 * n), f"F{n % 2}") for n in range(1, 11)])
        self.forgotten: set[str] = {FAR}
        self.mono_ms = 0
        self.view = SimView(self)
        self.desk = OrderDesk(lambda: SimOrders(self))
        self.commands = 0
        self.patience_ms = PATIENCE_MS
        self.before_verdict: Callable[[int], None] = lambda _: None
        """Called when a command is stored, with its number."""

        async def service() -> DelayService:
            return DelayService(ClusterLink("127.0.0.1:1", "TIMEWHEEL"), "127.0.0.1:1", folder, 1000)

        self.api = ServiceApi(self.view, self.desk, self.now_ms, lambda: self.mono_ms)
        app = make_app(self.api, self.view, MetricsText(asyncio.run(service())), token, closed)
        app.on_cleanup.append(self._close)
        self._thread = DoorThread()
        self.port = self._thread.bind("127.0.0.1", 0, app)
        self._thread.start()

    async def _close(self, _app: Any) -> None:
        await self.desk.close()

    def __enter__(self) -> Self:
        self.run_to(6000)
        assert self.node.shard is not None
        assert self.node.shard.state is OwnerState.OWNING
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port."""
        self._thread.stop()

    # ------------------------------------------------------------------------------------------------ time and sends

    def at(self, after_ms: int) -> int:
        """Epoch ms of a time of the world."""
        return BASE_MS + after_ms

    def now_ms(self) -> int:
        """The wall clock."""
        return self.at(self.sim.now)

    def run_to(self, when: int) -> None:
        """Let time pass."""
        with self.lock:
            self.mono_ms += max(0, when - self.sim.now)
            self.sim.run(when)

    def send(self, *dues: int) -> list[str]:
        """Send, due after so many ms of the world's time; the names."""
        with self.lock:
            first = len(self.sim.entry_log)
            for due in dues:
                self.sim.send(due)
            self.sim.run(self.sim.now + 500)
            return [f"{NAME}/{first + n}" for n in range(len(dues))]

    def take_over(self) -> None:
        """The node dies; another one takes the shard over. Time has to pass."""
        with self.lock:
            self.node.dead = True
            self.node = Node(self.sim, f"n{len(self.sim.nodes)}")
            self.node.assigned = True

    def settle(self) -> None:
        """Let time pass until the shard has an owner, and every command its verdict."""
        with self.lock:
            while not all(self.sim.verdicts.values()) or not self.is_owned:
                self.run_to(self.sim.now + 200)
            self.run_to(self.sim.now + 2000)

    @property
    def is_owned(self) -> bool:
        """Whether the shard has an owner now."""
        shard = self.node.shard
        return shard is not None and shard.state is OwnerState.OWNING

    # ------------------------------------------------------------------------------------------------ shards

    def sights(self) -> list[ShardSight]:
        """The shards, as of now."""
        with self.lock:
            shard = self.node.shard
            due = {} if shard is None else {at: due for at, due in self.node.pending.items() if at not in shard.done}
            self.mine.rows = sorted(
                (row(at, self.at(due_ms), f"T{at % 3}") for at, due_ms in due.items()),
                key=lambda found: (found.due_ms, found.offset),
            )
            found = [
                ShardSight(NAME, Sighting.OWNED, ME, "", self.mine, FIRST),
                ShardSight(FOLLOWED, Sighting.FOLLOWED, OTHERS, "", self.followed, FIRST),
                ShardSight(FAR, Sighting.MISSING, OTHERS, "another instance owns it"),
            ]
            return [one.without("forgotten") if one.name in self.forgotten else one for one in found]

    def command(self, name: str, kind: LineKind, due_ms: int, by_ms: int) -> ChangeResult:
        """Append a command, and read on behind it until its verdict stands there."""
        with self.lock:
            shard, _, offset = name.rpartition("/")
            if shard != NAME:
                raise RequestTimeoutError("no verdict within 15000 ms. The command stands, and will be decided")
            sim, about = self.sim, int(offset)
            self.commands += 1
            wanted = self._due(about) + by_ms if by_ms else due_ms - BASE_MS
            wanted = max(sim.now, wanted)
            at = len(sim.entry_log)
            sim.verdicts[at] = []
            sim.append(Line(-1, kind, wanted if kind is LineKind.MOVE else 0, about=about))
            self.before_verdict(self.commands)
            until = sim.now + self.patience_ms
            while not sim.verdicts[at] and sim.now < until:
                sim.run(sim.now + 50)
            if not sim.verdicts[at]:
                raise RequestTimeoutError(
                    f"no verdict within {PATIENCE_MS} ms. The command stands, and will be decided"
                )
            (verdict,) = sim.verdicts[at]
            waits = verdict == "pending"
            place = 0 if shard is None or self.node.shard is None else self.node.shard.commands.place_of(about)
            return ChangeResult(
                verdict="done" if waits else verdict,
                id=name,
                broker=shard,
                due_ms=self.at(self._due(about)) if waits else self.at(wanted) if wanted else 0,
                where=f"{shard}/{place}" if waits else "",
            )

    def _due(self, entry: int) -> int:
        """When an entry is due where it stands now; 0 if it does not wait."""
        assert self.node.shard is not None
        return self.node.pending.get(self.node.shard.commands.place_of(entry), 0)

    # ------------------------------------------------------------------------------------------------ asking

    def get(self, path: str, **headers: str) -> Answer:
        """GET under the API."""
        return ask(self.port, path if path.startswith("/") else f"/api/v1/{path}", **headers)

    def post(self, path: str, document: object = b"{}", **headers: str) -> Answer:
        """POST under the API."""
        return ask(self.port, f"/api/v1/{path}", "POST", document, **headers)
