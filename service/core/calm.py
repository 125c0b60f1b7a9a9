"""A broker is calm when it has certainly stored or dropped every earlier send. Only then are its queues searched.

A send whose answer was lost, or whose sender was killed, may still be on its way, for example in the buffers of a
broker that hangs. If the target queue was read before the broker stores that send, and the message was sent again,
there would be two copies. So a broker counts as calm only after two things: it has answered a probe that was sent
*after* the send was given up, and `SETTLE_MS` have passed since that answer. A broker that was stopped for half a
minute answers the probe when it continues. Then it has `SETTLE_MS` to process what it had received before.
"""

from __future__ import annotations

from service.core.lease import SETTLE_MS

__all__ = ["Calm"]


class Calm:
    """Brokers whose queues may be searched for deliveries in doubt. Times are monotonic ms of this machine."""

    __slots__ = ("_answered_ms", "_settle_ms", "_since_ms")

    def __init__(self, settle_ms: int = SETTLE_MS) -> None:
        self._settle_ms = settle_ms
        self._since_ms: dict[str, int] = {}
        self._answered_ms: dict[str, int] = {}

    def disturbed(self, broker: str, mono_ms: int) -> None:
        """Note that something sent to a broker before this time may still arrive."""
        if mono_ms > self._since_ms.get(broker, -1):
            self._since_ms[broker] = mono_ms
            # An answer to an earlier probe says nothing about what was sent after it.
            self._answered_ms.pop(broker, None)

    def probes(self) -> list[str]:
        """The brokers that must be sent a probe, which may be any request."""
        return [broker for broker in self._since_ms if broker not in self._answered_ms]

    def answered(self, broker: str, asked_ms: int, mono_ms: int) -> None:
        """Note that a broker has answered a probe, and when the probe was sent."""
        # The default is later than any probe: a broker that nothing has disturbed needs none.
        if broker not in self._answered_ms and asked_ms >= self._since_ms.get(broker, mono_ms + 1):
            self._answered_ms[broker] = mono_ms

    def is_calm(self, broker: str, mono_ms: int) -> bool:
        """True if no earlier send to a broker can still arrive.

        >>> calm = Calm(1000); calm.disturbed("a", 5); calm.answered("a", 4, 6); calm.is_calm("a", 9999)
        False
        >>> calm.answered("a", 7, 8); calm.is_calm("a", 1007), calm.is_calm("a", 1008)
        (False, True)
        """
        if broker not in self._since_ms:
            return True
        answered_ms = self._answered_ms.get(broker)
        return answered_ms is not None and mono_ms - answered_ms >= self._settle_ms
