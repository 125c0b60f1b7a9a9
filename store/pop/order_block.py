"""`OrderBlock`: what one queue has handed out in order to one group, and until when nothing more is handed out.

No copies are made of messages that are popped in order: while one of them is neither acknowledged nor visible again,
the queue is blocked for its group. Then exactly those come again that were not acknowledged, under a new pop time; the
handles of the pop before are worth nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["OrderBlock"]


class OrderBlock:
    """One queue's block for one group.

    ``waiting`` are the offsets that are not acknowledged, in order; ``visible_ms`` says of those that are handed out
    when they may be handed out again; ``counts`` how often each has come before. ``attempt_id`` names the request that
    got them: the same request may have them again.
    """

    __slots__ = ("attempt_id", "counts", "pop_ms", "timer", "visible_ms", "waiting")

    def __init__(self, offsets: Sequence[int]) -> None:
        self.waiting = list(offsets)
        self.visible_ms: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.attempt_id = ""
        self.pop_ms = 0
        self.timer = -1

    def hand_out(self, offsets: Sequence[int], attempt_id: str, pop_ms: int, invisible_ms: int) -> None:
        """Note that some of those that wait were handed out now."""
        again = not attempt_id or attempt_id != self.attempt_id
        for offset in offsets:
            if again and offset in self.visible_ms:
                self.counts[offset] = self.counts.get(offset, 0) + 1
        self.visible_ms = dict.fromkeys(offsets, pop_ms + invisible_ms)
        self.attempt_id = attempt_id
        self.pop_ms = pop_ms

    def blocks(self, attempt_id: str, now_ms: int) -> bool:
        """True if a request gets nothing now."""
        return bool(self.visible_ms) and attempt_id != (self.attempt_id or None) and self.free_ms() > now_ms

    def free_ms(self) -> int:
        """When the last of those that are handed out is visible again; 0 if none is."""
        return max(self.visible_ms.values(), default=0)

    def ack(self, offset: int, pop_ms: int) -> bool:
        """Take an acknowledged message out; False if it was not handed out at that time."""
        if pop_ms != self.pop_ms or offset not in self.visible_ms:
            return False
        self.forget(offset)
        return True

    def forget(self, offset: int) -> None:
        """A message is done with."""
        self.visible_ms.pop(offset, None)
        self.counts.pop(offset, None)
        self.waiting.remove(offset)

    def change(self, offset: int, pop_ms: int, visible_ms: int) -> bool:
        """Have a message visible at another time; False if it was not handed out at that time."""
        if pop_ms != self.pop_ms or offset not in self.visible_ms:
            return False
        self.visible_ms[offset] = visible_ms
        return True
