"""The interface between a broker and its plug-ins: plain types and protocols, no behaviour.

A plug-in sees every message before it is appended (`Plugin.before_put`) and answers with

==============  ==========================================================================
``None``        not mine: append it to the CommitLog as usual
`Held`          mine: `Plugin.commit_turn` stores it, and the plug-in delivers it later
`Refused`       nothing is stored; the sender gets this status and this remark
`Unsettled`     ask again when the turn has ended: it depends on another message of this turn
==============  ==========================================================================

A plug-in may check a client batch as a whole (`store.put.plugin_abilities.BatchPlugin`, optional). If any plug-in of a
broker cannot, all of them get the messages one by one.

A plug-in delivers through one narrow interface, `DeliveryTarget.put_batch`: the broker's own CommitLog, or a producer
to a remote cluster (`service`).

Further optional abilities stand in `store.put.plugin_abilities`; the broker tests for them with ``isinstance``.

Threads: only the broker's network loop calls ``before_put`` (once per message) and ``commit_turn`` (once per turn of
the loop). Everything else of a plug-in may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from store.put.put import Put, PutResult, PutStatus
from store.put.put_block import PutBlock
from store.put.put_group import PutGroup
from store.put.put_record import Held, HeldBatch, OneByOne, PutRecord, Refused, Unsettled, put_record, put_record_of
from store.put.put_rows import PutRows

if TYPE_CHECKING:
    from remoting.messages.message import Message
    from store.disk.checkpoint import DeliveryCheckpoint
    from store.disk.files import Files
    from store.disk.flusher import Flusher
    from store.disk.ticket import Ticket

__all__ = [
    "BeforePut",
    "BoundedTarget",
    "CommandOutcome",
    "CommandResult",
    "DeliveryTarget",
    "DurableTarget",
    "Held",
    "HeldBatch",
    "LookupTarget",
    "OneByOne",
    "PendingMessage",
    "Plugin",
    "PluginContext",
    "Put",
    "PutBlock",
    "PutGroup",
    "PutRecord",
    "PutResult",
    "PutRows",
    "PutStatus",
    "Refused",
    "SettlingTarget",
    "Unsettled",
    "put_record",
    "put_record_of",
]


BeforePut = Callable[["Message", int], Held | Refused | None]
"""The type of `Plugin.before_put`: message and ``now_ms`` to an answer."""


class CommandOutcome(IntEnum):
    """The definite answer to cancel, move and send-now."""

    DONE = 0
    ALREADY_DELIVERED = 1
    ALREADY_CANCELLED = 2
    UNKNOWN = 3


class CommandResult:
    """The result of a command on a pending message; ``detail`` is a sentence for people."""

    __slots__ = ("detail", "outcome")

    def __init__(self, outcome: CommandOutcome, detail: str = "") -> None:
        self.outcome = outcome
        self.detail = detail


class PendingMessage:
    """One row of a listing of pending messages; ``due_ms`` is epoch ms, ``size`` the bytes of the record."""

    __slots__ = ("due_ms", "failed", "offset", "queue_id", "size", "topic", "version")

    def __init__(
        self, offset: int, version: int, due_ms: int, topic: str, queue_id: int, size: int, failed: bool
    ) -> None:
        self.offset = offset
        self.version = version
        self.due_ms = due_ms
        self.topic = topic
        self.queue_id = queue_id
        self.size = size
        self.failed = failed


class DeliveryTarget(Protocol):
    """The target of due messages. The broker's own CommitLog is one."""

    def put_batch(self, puts: Sequence[Put]) -> list[PutResult]:
        """Append in order, by one write where possible; returns one result for each put. Any thread.

        The clock is read once inside the append lock. A put whose ``due_ms`` lies after that reading is not appended
        (`PutStatus.NOT_DUE`). A refused message never raises; a full disk or a closed store answers each put with
        SERVICE_NOT_AVAILABLE. A put of several messages (`PutBlock`) is appended as a whole or refused; a target that
        does not take blocks answers `PutStatus.NOT_AS_ONE`, and the caller puts the records one by one.
        """
        ...

    def scan(self, from_offset: int) -> Iterable[tuple[int, bytes]]:
        """Yield (CommitLog offset, record) from an offset to the end: recovery learns from it what was delivered."""
        ...


@runtime_checkable
class SettlingTarget(DeliveryTarget, Protocol):
    """A target where a crash may bring back a put that it has refused."""

    def settle(self) -> None:
        """Make sure that refused puts stay refused. Raises StoreError while that is not certain.

        Call it before you cancel or move a message whose delivery was refused, under the lock under which you deliver.
        Costs nothing unless a write has failed.
        """
        ...


@runtime_checkable
class DurableTarget(DeliveryTarget, Protocol):
    """A target whose user may want deliveries to be durable before a command answers that they were made."""

    def delivery_ticket(self) -> Ticket | None:
        """A ticket for all deliveries so far; None if no answer waits for that (ASYNC_FLUSH)."""
        ...


@runtime_checkable
class BoundedTarget(DeliveryTarget, Protocol):
    """A target that says beforehand what it will refuse. For other targets a plug-in assumes limits of its own."""

    @property
    def record_bytes_max(self) -> int:
        """Size of the longest record that it takes, in bytes."""
        ...

    def disk_refusal(self) -> str:
        """Why the disk accepts no messages now, for the sender; empty if it does. Costs next to nothing."""
        ...


@runtime_checkable
class LookupTarget(DeliveryTarget, Protocol):
    """A target that can look delivered messages up, so that a command can tell them from cancelled ones."""

    def find_delivered(self, virtual_offset: int) -> bytes | None:
        """Read the record of a delivered message by its virtual offset; None if none can be read."""
        ...


class PluginContext:
    """The parts of the host that a plug-in gets when it is opened."""

    __slots__ = (
        "checkpoint",
        "config",
        "directory",
        "files",
        "flusher",
        "now_ms",
        "store_host",
        "store_id",
        "target",
        "warn",
    )

    def __init__(
        self,
        *,
        target: DeliveryTarget,
        files: Files,
        directory: Path,
        store_id: bytes,
        store_host: bytes,
        config: Mapping[str, str],
        flusher: Flusher,
        checkpoint: DeliveryCheckpoint,
        now_ms: Callable[[], int] | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.target = target
        self.files = files
        self.directory = directory  # the plug-in's own: <store>/timewheel/<plug-in name>
        self.store_id = store_id
        self.store_host = store_host
        self.config = config  # broker configuration, keys as in broker.conf
        self.flusher = flusher
        self.checkpoint = checkpoint
        self.now_ms = now_ms  # a clock to use instead of the plug-in's own (tests, simulation)
        self.warn = warn


@runtime_checkable
class Plugin(Protocol):
    """A plug-in, which a broker loads by name (entry point group ``timewheel.plugins``, or ``package.module:Class``).

    Life: ``Plugin()``, ``open(context)``, ``start()``, … , ``stop()``, ``close()``. ``open`` recovers (before
    the broker listens), ``start`` starts threads, ``stop`` ends them, ``close`` gives files back.
    """

    name: str

    def open(self, context: PluginContext) -> None:
        """Recover from the plug-in's files. Raises StoreError if they cannot be trusted."""
        ...

    def start(self) -> None:
        """Start the threads. A simulation does not call this and steps the parts itself."""
        ...

    def stop(self) -> None:
        """End the threads, within a fraction of a second; nothing is spilled."""
        ...

    def close(self) -> None:
        """Sync and give the files back."""
        ...

    def before_put(self, message: Message, now_ms: int) -> Held | Refused | None:
        """Check one message; may change ``message.properties``. Never blocks, never does I/O."""
        ...

    def take_back(self, held: Held) -> None:
        """Forget a message that `before_put` took in this turn: another one of its batch was refused, so all are.

        Also called after `commit_turn`, for a message of that same turn, if the store refused the rest of its batch.
        The host holds the delivery lock (``checkpoint.lock``) since before `commit_turn`, so none of them was
        delivered.
        """
        ...

    def commit_turn(self) -> Ticket | None:
        """Write all messages that were held since the last call, as one frame by one write.

        Returns None if nothing was held, else a ticket for the flusher: under SYNC_FLUSH the host replies when it is
        durable. The messages are armed at once. Raises StoreError if the write failed: nothing of this turn is pending
        then, and the host answers SERVICE_NOT_AVAILABLE.
        """
        ...

    def view(self, offset: int) -> bytes | None:
        """Read the record of a pending message by its virtual offset; None if it is not pending."""
        ...

    def topics_changed(self) -> None:
        """Topics or permissions changed: failed deliveries may be worth another try."""
        ...

    def pending_count(self) -> int:
        """Number of accepted messages that are neither delivered nor cancelled."""
        ...

    def cancel(self, offset: int, now_ms: int) -> CommandResult:
        """Cancel a pending message; durable when it returns. Raises StoreError."""
        ...

    def move(self, offset: int, due_ms: int, now_ms: int) -> CommandResult:
        """Give a pending message another due time (epoch ms); durable when it returns. Raises StoreError."""
        ...

    def send_now(self, offset: int, now_ms: int) -> CommandResult:
        """Make a pending message due now; durable when it returns. Raises StoreError."""
        ...

    def list_pending(self, after: tuple[int, int] | None, limit: int) -> list[PendingMessage]:
        """List at most ``limit`` pending messages in (due, offset) order, behind the key ``after``."""
        ...

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        ...

    def check(self) -> list[str]:
        """Say everything that is wrong with the plug-in's state; empty when nothing is."""
        ...
