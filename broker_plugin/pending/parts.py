"""The parts of sweeper and recovery that the desk uses; it knows no more of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from store.spill.rows.block import Block

__all__ = ["Delivery", "Overdue"]


class Delivery(Protocol):
    """The sweeper: publishes accepted messages, arms moved ones."""

    @property
    def frontier_ms(self) -> int:
        """Nothing due at or after this time is armed, epoch ms."""
        ...

    @property
    def armed_count(self) -> int:
        """Messages armed."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """The earliest armed due time, epoch ms; None if nothing is armed."""
        ...

    def publish_all(self) -> None:
        """Publish everything that was accepted."""
        ...

    def offer(self, block: Block, soonest_ms: int) -> None:
        """Take a block that was journalled, with its earliest due time (epoch ms)."""
        ...


class Overdue(Protocol):
    """Recovery: which messages are overdue because a delivery was refused."""

    @property
    def failed_count(self) -> int:
        """Number of messages whose last delivery failed."""
        ...

    def is_failed(self, topic: str, due_ms: int) -> bool:
        """True if a message of this topic and due time counts as failed. Under the delivery lock."""
        ...

    def removed(self, topic: str, due_ms: int) -> None:
        """Note that a message was cancelled or moved. Under the delivery lock."""
        ...
