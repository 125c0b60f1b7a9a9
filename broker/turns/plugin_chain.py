"""Several plug-ins as one: they are asked in order, and the first one that holds or refuses a message decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from store.put.plugin_abilities import BatchPlugin, DirectPlugin, DurablyRefusingPlugin, PunctualPlugin
from store.put.plugin_api import BeforePut, Held, HeldBatch, OneByOne, Plugin, Refused

if TYPE_CHECKING:
    from remoting.messages.message import Message, UniformBatch
    from store.disk.ticket import Ticket

__all__ = [
    "BeforePutBatch",
    "chained",
    "chained_for_batches",
    "committed_by",
    "refused_for_two",
    "someone_behind",
    "taken_back_by",
]

BeforePutBatch = Callable[["UniformBatch", int], HeldBatch | OneByOne | None]


def chained(plugins: tuple[Plugin, ...]) -> BeforePut | None:
    """One function that asks all plug-ins about a message; None if there is none to ask."""
    asked: list[BeforePut] = [
        plugin.direct_before_put() if isinstance(plugin, DirectPlugin) else plugin.before_put for plugin in plugins
    ]
    if len(asked) <= 1:
        return asked[0] if asked else None

    def before_put(message: Message, now_ms: int) -> Held | Refused | None:
        for ask in asked:
            outcome = ask(message, now_ms)
            if outcome is not None:
                return outcome
        return None

    return before_put


def chained_for_batches(plugins: tuple[Plugin, ...]) -> BeforePutBatch:
    """One function that asks all plug-ins about a batch; `OneByOne` if a plug-in only knows single messages."""
    asked = [plugin.before_put_batch for plugin in plugins if isinstance(plugin, BatchPlugin)]
    one_by_one = OneByOne() if len(asked) < len(plugins) else None

    def before_put_batch(batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        if one_by_one is None:
            for ask in asked:
                outcome = ask(batch, now_ms)
                if outcome is not None:
                    return outcome
        return one_by_one

    return before_put_batch


def someone_behind(plugins: Sequence[Plugin]) -> Callable[[], bool] | None:
    """One function that says whether the threads of any plug-in are late; None if there is none to ask."""
    asked = [plugin.is_behind for plugin in plugins if isinstance(plugin, PunctualPlugin)]
    if len(asked) <= 1:
        return asked[0] if asked else None
    return lambda: any(is_behind() for is_behind in asked)


def committed_by(plugins: Sequence[Plugin]) -> Ticket | None:
    """Let plug-ins write what they hold of a turn. Raises StoreError: then everything that was held has failed."""
    ticket: Ticket | None = None
    for plugin in plugins:
        written = plugin.commit_turn()
        if written is not None:
            ticket = written.joined(ticket)
    return ticket


def taken_back_by(plugins: Sequence[Plugin]) -> Ticket | None:
    """A ticket for everything that plug-ins have written to take messages back; None if they wrote nothing."""
    ticket: Ticket | None = None
    for plugin in plugins:
        if isinstance(plugin, DurablyRefusingPlugin):
            written = plugin.taken_back()
            if written is not None:
                ticket = written.joined(ticket)
    return ticket


def refused_for_two(decided: Held | Refused, first: int, second: int) -> Held | Refused:
    """Add the numbers of two messages of a batch to a refusal of the second; other decisions are returned unchanged."""
    if isinstance(decided, Refused):
        return Refused(decided.status, f"messages {first} and {second} of the batch: {decided.remark}")
    return decided
