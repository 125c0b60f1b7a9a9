"""Threads that run one at a time, handed on by a seed: the broker's own code, suspended at every lock and disk call.

Each *actor* (network loop, sweeper, flusher, …) has a real thread, but only the one that holds the baton runs. At a
*switch point* (a lock is asked for or given back, the disk is called) it may hand the baton back to the driver, which
draws who goes on; it must, if the lock is held by somebody else. So an interleaving is a sequence of draws, and
the same seed gives the same one.

`simulated` puts `SimLock` in the place of `threading.Lock` and `threading.RLock` in the modules of the product for as
long as a broker is being built; without a baton it leaves them alone.
"""

from __future__ import annotations

import importlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

from tests.support.simdisk import PowerCut

__all__ = ["Baton", "Deadlock", "SimLock", "Task", "simulated"]

MODULES = (
    "store.log.chunks",
    "store.log.commit_log",
    "store.log.synced_log",
    "store.levels.level_scheduler",
    "store.disk.file_cache",
    "store.keeper",
    "store.message_store",
    "store.disk.checkpoint",
    "store.disk.flusher",
    "store.spill.spill_store",
    "store.spill.state.message_rows",
    "store.spill.state.directory",
    "store.spill.journal.journal",
    "store.pop.journal",
    "store.pop.popped_queues",
    "broker.core",
    "broker.tables.late_tables",
    "broker_plugin.pending.delay_keys",
)
"""Every module that makes locks."""


class Deadlock(BaseException):
    """Everybody waits for a lock that somebody else holds."""


class Task:
    """One piece of work of an actor: ``call`` runs in a thread of its own until it is done."""

    __slots__ = ("call", "done", "error", "name", "result", "waits_for", "worker")

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name = name
        self.call = call
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.waits_for: SimLock | None = None
        self.worker: _Worker | None = None

    @property
    def ready(self) -> bool:
        """Whether it could go on."""
        return self.waits_for is None or self.waits_for.owner is None


class _Worker(threading.Thread):
    """A thread that does one task after the other; used again by whoever needs one."""

    idle: list[_Worker] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(name="simulated", daemon=True)
        self.go = threading.Lock()
        self.go.acquire()
        self.task: Task | None = None
        self.back: Any = None
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            task = self.task
            assert task is not None
            try:
                task.result = task.call()
            except BaseException as error:
                task.error = error
            task.done = True
            self.task = task = None
            self.back.release()


class Baton:
    """Who runs. The driver (whoever calls `resume`) is not an actor: locks never make it wait.

    ``switch`` draws at a switch point whether the baton is handed back.
    """

    def __init__(self, switch: Callable[[], bool]) -> None:
        self.current: Task | None = None
        self.dead = False
        self.switches = 0
        self._switch = switch
        self._back = threading.Lock()
        self._back.acquire()

    def resume(self, task: Task) -> None:
        """Let a task go on until it hands the baton back or is done."""
        worker = task.worker
        if worker is None:
            worker = task.worker = _Worker.idle.pop() if _Worker.idle else _Worker()
            worker.task, worker.back = task, self._back
        outer, self.current = self.current, task
        worker.go.release()
        self._back.acquire()
        self.current = outer
        self.switches += 1
        if task.done:
            task.worker = None
            _Worker.idle.append(worker)

    def point(self) -> None:
        """A switch point."""
        if self.current is not None and not self.dead and self._switch():
            self._park(self.current)

    def wait_for(self, lock: SimLock) -> None:
        """Hand the baton back until the lock is free."""
        task = self.current
        if task is None:
            raise Deadlock(f"the driver would have to wait for a lock that {lock.owner} holds")
        task.waits_for = lock
        self._park(task)
        task.waits_for = None

    def _park(self, task: Task) -> None:
        worker = task.worker
        assert worker is not None
        self._back.release()
        worker.go.acquire()
        if self.dead:
            raise PowerCut

    def kill(self, tasks: list[Task]) -> None:
        """End everything at once: suspended tasks die where they are, and no lock means anything any more."""
        self.dead = True
        for task in tasks:
            while not task.done:
                self.resume(task)


class SimLock:
    """A lock, re-entrant or not, whose waiters are suspended by a `Baton`."""

    __slots__ = ("baton", "before", "count", "owner", "reentrant")

    def __init__(self, baton: Baton, reentrant: bool = False) -> None:
        self.baton = baton
        self.reentrant = reentrant
        self.owner: object = None
        self.count = 0
        self.before: Callable[[], None] | None = None
        """Called just before somebody gets it, when nobody has it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002
        """Take it; a switch point."""
        baton = self.baton
        if baton.dead:
            return True
        me: object = baton.current or "driver"
        if self.owner is me:
            if not self.reentrant:
                raise Deadlock(f"{getattr(me, 'name', me)} takes a lock that it holds")
            self.count += 1
            return True
        baton.point()
        while self.owner is not None:
            if not blocking:
                return False
            baton.wait_for(self)
        if self.before is not None:
            self.before()
        self.owner = me
        self.count = 1
        return True

    def release(self) -> None:
        """Give it back; a switch point."""
        if self.baton.dead:
            return
        self.count -= 1
        if not self.count:
            self.owner = None
            self.baton.point()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self.owner is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition(SimLock):
    """A condition that nobody waits on: the driver steps the level scheduler."""

    __slots__ = ()

    def notify(self, n: int = 1) -> None:
        """Nobody to tell."""


@contextmanager
def simulated(baton: Baton | None, store_id: int) -> Iterator[None]:
    """Build a broker with locks of ``baton`` (None: real ones) and, if its store is new, with this store id."""
    identity = importlib.import_module("store.disk.identity")
    before: list[tuple[Any, str, Any]] = [(identity, "uuid", identity.uuid)]
    identity.uuid = SimpleNamespace(uuid4=lambda: uuid.UUID(int=store_id + 1))  # type: ignore[attr-defined]
    locks: Any = threading
    if baton is not None:
        locks = SimpleNamespace(
            Lock=lambda: SimLock(baton),
            RLock=lambda: SimLock(baton, True),
            Condition=lambda: _Condition(baton, True),
            get_ident=threading.get_ident,
        )
    for name in MODULES:
        module = importlib.import_module(name)
        before.append((module, "threading", module.threading))  # not always the real one: worlds are built in worlds
        module.threading = locks  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
