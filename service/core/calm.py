"""When a broker has surely stored, or dropped, what was sent to it before: the condition for reading what it has.

A send whose answer was lost, or whose sender was killed, may still be on its way: in the buffers of a broker that
hangs, for one. Reading the target queue before it is stored, and sending once more, would make two copies. So a broker
counts as calm only after it has answered a probe that was asked *after* the send was given up, and `SETTLE_MS` more
have passed. A broker that was stopped for half a minute answers the probe when it goes on, and has then as long to
work off what it had received before.
"""

from __future__ import annotations

from service.core.lease import SETTLE_MS

__all__ = ["Calm"]


class Calm:
    """Which brokers may be read for what is in doubt. Times are monotonic ms of this machine."""

    __slots__ = ("_answered_ms", "_settle_ms", "_since_ms")

    def __init__(self, settle_ms: int = SETTLE_MS) -> None:
        self._settle_ms = settle_ms
        self._since_ms: dict[str, int] = {}
        self._answered_ms: dict[str, int] = {}

    def disturbed(self, broker: str, mono_ms: int) -> None:
        """Something that was sent to a broker before this may still arrive."""
        if mono_ms > self._since_ms.get(broker, -1):
            self._since_ms[broker] = mono_ms
            self._answered_ms.pop(broker, None)

    def probes(self) -> list[str]:
        """Brokers that have to be asked something, whatever it is."""
        return [broker for broker in self._since_ms if broker not in self._answered_ms]

    def answered(self, broker: str, asked_ms: int, mono_ms: int) -> None:
        """A broker has answered what was asked then."""
        if broker not in self._answered_ms and asked_ms >= self._since_ms.get(broker, mono_ms + 1):
            self._answered_ms[broker] = mono_ms

    def is_calm(self, broker: str, mono_ms: int) -> bool:
        """Whether nothing of what was sent before is under way any more.

        >>> calm = Calm(1000); calm.disturbed("a", 5); calm.answered("a", 4, 6); calm.is_calm("a", 9999)
        False
        >>> calm.answered("a", 7, 8); calm.is_calm("a", 1007), calm.is_calm("a", 1008)
        (False, True)
        """
        if broker not in self._since_ms:
            return True
        answered_ms = self._answered_ms.get(broker)
        return answered_ms is not None and mono_ms - answered_ms >= self._settle_ms
