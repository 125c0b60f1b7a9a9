"""What the desk needs of the plug-in's threads: all that it knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from store.spill.rows.model import Block

__all__ = ["Delivery", "Overdue"]


class Delivery(Protocol):
    """The sweeper: what was accepted becomes visible, what is moved is armed."""

    @property
    def frontier_ms(self) -> int:
        """Due times from which on nothing is armed."""
        ...

    @property
    def armed_count(self) -> int:
        """Messages armed."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When the first of what is armed is due."""
        ...

    def publish_all(self) -> None:
        """Publish everything that was accepted."""
        ...

    def offer(self, block: Block, soonest_ms: int) -> None:
        """Take a block that was written."""
        ...


class Overdue(Protocol):
    """Recovery: which messages are overdue because a delivery was refused."""

    @property
    def failed_count(self) -> int:
        """How many there are."""
        ...

    def is_failed(self, topic: str, due_ms: int) -> bool:
        """Whether a message of this topic and due time is one. Under the delivery lock."""
        ...

    def removed(self, topic: str, due_ms: int) -> None:
        """Note that a message was cancelled or moved. Under the delivery lock."""
        ...
