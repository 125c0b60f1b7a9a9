"""What a plug-in may have besides `store.put.plugin_api.Plugin`: one protocol for each ability, no behaviour.

A broker looks for each of them with ``isinstance`` when it has opened the plug-in, and does without those that are not
there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from store.put.plugin_api import BeforePut, HeldBatch, OneByOne, Plugin

if TYPE_CHECKING:
    from remoting.messages.message import UniformBatch
    from store.disk.flusher import Ticket

__all__ = [
    "Aside",
    "AsidePlugin",
    "BatchPlugin",
    "DirectPlugin",
    "DurablyRefusingPlugin",
    "LiveKeysPlugin",
    "PromisingPlugin",
    "PunctualPlugin",
]


@runtime_checkable
class DirectPlugin(Plugin, Protocol):
    """A plug-in whose `Plugin.before_put` only calls a function that the host may as well call itself."""

    def direct_before_put(self) -> BeforePut:
        """Answer with that function. Asked once, after ``open``; it saves one call for each message."""
        ...


@runtime_checkable
class LiveKeysPlugin(Plugin, Protocol):
    """A plug-in with configuration keys of its own that can be changed while the broker runs."""

    @property
    def live_keys(self) -> Collection[str]:
        """Keys that it reads anew each time."""
        ...


@runtime_checkable
class PromisingPlugin(Plugin, Protocol):
    """A plug-in that needs disk space for what it has accepted: retention keeps that much free."""

    def promised_bytes(self) -> int:
        """Bytes that delivering all of it will take. Any thread."""
        ...


@runtime_checkable
class PunctualPlugin(Plugin, Protocol):
    """A plug-in whose threads have work that must not wait for what comes in."""

    def is_behind(self) -> bool:
        """Whether they are late with it: then the network loop takes less of the interpreter. Any thread, no lock."""
        ...


class Aside(Protocol):
    """What a plug-in holds of a large batch, which is looked at in slices, with other turns between them.

    For each slice: `begin`, `Plugin.before_put` or `before_put_batch` for its messages, `take`. When all are checked,
    `put_back` makes them a part of the present turn, as if `before_put` had taken all of them now. If the batch is
    given up before that, the host just drops this. Network loop only.
    """

    def begin(self) -> None:
        """A slice begins."""
        ...

    def take(self) -> None:
        """The slice is over: what was held in it is no part of the present turn."""
        ...

    def put_back(self) -> None:
        """Make all of it a part of the present turn."""
        ...

    def take_back(self) -> None:
        """As `Plugin.take_back`, for all of it: this turn, or the one that was just journalled."""
        ...


@runtime_checkable
class AsidePlugin(Plugin, Protocol):
    """A plug-in that can look at a large batch in slices. Brokers with one that cannot look at it in one go."""

    def aside(self) -> Aside:
        """Begin a large batch."""
        ...


@runtime_checkable
class DurablyRefusingPlugin(Plugin, Protocol):
    """A plug-in that has to write something when a message is taken back after `commit_turn`."""

    def taken_back(self) -> Ticket | None:
        """A ticket for all that `take_back` has written; the refusal is answered when it is durable."""
        ...


@runtime_checkable
class BatchPlugin(Plugin, Protocol):
    """A plug-in that can look at a client batch as columns, without a `Message` for each element."""

    def before_put_batch(self, batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        """Look at a batch. Its texts have none of a broker's own properties, no level and no transaction mark.

        `HeldBatch`: mine, as `Held` for each. None: none of it is mine, and `before_put` would change nothing of it.
        `OneByOne`: ask `before_put` about each message; nothing was taken yet. Never blocks, never does I/O.
        """
        ...
