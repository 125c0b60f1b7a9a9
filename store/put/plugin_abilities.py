"""Optional abilities of a plug-in, beside `store.put.plugin_api.Plugin`: a protocol for each, no behaviour.

A broker tests for each of them with ``isinstance`` after it has opened the plug-in. All are optional.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from store.put.plugin_api import BeforePut, HeldBatch, OneByOne, Plugin

if TYPE_CHECKING:
    from remoting.messages.message import UniformBatch
    from store.disk.ticket import Ticket

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
        """Return that function. Called once, after ``open``; it saves one call for each message."""
        ...


@runtime_checkable
class LiveKeysPlugin(Plugin, Protocol):
    """A plug-in with configuration keys of its own that can be changed while the broker runs."""

    @property
    def live_keys(self) -> Collection[str]:
        """Keys whose values it reads again at each use."""
        ...


@runtime_checkable
class PromisingPlugin(Plugin, Protocol):
    """A plug-in that will need disk space for messages it has accepted: retention keeps that much free."""

    def promised_bytes(self) -> int:
        """Bytes that delivering all of them will take. Any thread."""
        ...


@runtime_checkable
class PunctualPlugin(Plugin, Protocol):
    """A plug-in whose threads have work that must not wait for incoming requests."""

    def is_behind(self) -> bool:
        """True if that work is late: the network loop then takes less of the interpreter. Any thread, no lock."""
        ...


class Aside(Protocol):
    """The messages that a plug-in holds of a large batch. The batch is checked in slices, with other turns in between.

    For each slice: `begin`, `Plugin.before_put` or `before_put_batch` for its messages, `take`. When all are checked,
    `put_back` makes them a part of the present turn, as if `before_put` had taken all of them now. If the batch is
    given up before that, the host just drops this object. Network loop only.
    """

    def begin(self) -> None:
        """Begin a slice."""
        ...

    def take(self) -> None:
        """End a slice: take the messages that were held in it out of the present turn."""
        ...

    def put_back(self) -> None:
        """Make all held messages a part of the present turn."""
        ...

    def take_back(self) -> None:
        """`Plugin.take_back` for all held messages, in the present turn or right after its `Plugin.commit_turn`."""
        ...


@runtime_checkable
class AsidePlugin(Plugin, Protocol):
    """A plug-in that can check a large batch in slices. If any plug-in cannot, the broker checks it in one piece."""

    def aside(self) -> Aside:
        """Begin a large batch; returns what holds its messages."""
        ...


@runtime_checkable
class DurablyRefusingPlugin(Plugin, Protocol):
    """A plug-in that must write something when a message is taken back after `Plugin.commit_turn`."""

    def taken_back(self) -> Ticket | None:
        """A ticket for all that `take_back` has written; the host answers the refusal when it is durable."""
        ...


@runtime_checkable
class BatchPlugin(Plugin, Protocol):
    """A plug-in that can check a client batch as columns, without a `Message` for each element."""

    def before_put_batch(self, batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        """Check a batch. Its properties include none of the broker's own, no level and no transaction mark.

        `HeldBatch`: all messages are held, as with `Held` for each. None: none is held, and `before_put` would change
        none of them. `OneByOne`: nothing was taken; call `before_put` for each message. Never blocks, never does I/O.
        """
        ...
