"""RocketMQ's fixed delay levels: the queue in which a message with ``DELAY`` waits, and its deliver time.

A message with ``DELAY`` = n waits in queue n - 1 of ``SCHEDULE_TOPIC_XXXX``; its own topic and queue are kept in the
properties ``REAL_TOPIC`` and ``REAL_QID``. The ConsumeQueue entry contains the due time instead of a tag's hash: store
time plus the level's delay, by the table of levels at the time of dispatch (`store.derived.dispatch.level_due_ms`).
Levels
count from 1; a level beyond the table counts as the last one.
(Apache: HookUtils.handleScheduleMessage.)
"""

from __future__ import annotations

from remoting.messages.message import Message, MessageError
from remoting.messages.properties import (
    DELAY,
    OWN_PROPERTIES,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    get_property,
    remove_properties,
    with_properties,
)
from store.derived.dispatch import SCHEDULE_TOPIC

__all__ = ["SCHEDULE_TOPIC", "DelayLevels"]

_UNKNOWN_LEVEL_MS = 1000
_TRANSACTION_TYPE = 0xC
_UNDECIDED = (0x4, 0xC)  # prepared, rolled back
_REPLACED = (REAL_TOPIC, REAL_QID, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS, *OWN_PROPERTIES)


class DelayLevels:
    """The table of levels: ``delays_ms[0]`` is the delay of level 1.

    >>> levels = DelayLevels((1_000, 5_000))
    >>> levels.delay_ms(2), levels.delay_ms(9)
    (5000, 1000)
    >>> message = Message("Orders", 3, properties="DELAY\\x017\\x02")
    >>> levels.route(message)
    5000
    >>> message.topic, message.queue_id, message.properties
    ('SCHEDULE_TOPIC_XXXX', 1, 'DELAY\\x012\\x02REAL_TOPIC\\x01Orders\\x02REAL_QID\\x013\\x02')
    """

    __slots__ = ("delays_ms",)

    def __init__(self, delays_ms: tuple[int, ...]) -> None:
        self.delays_ms = delays_ms

    def __len__(self) -> int:
        """The highest level."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """Delay of a level; one second for a level that is not in the table."""
        return self.delays_ms[level - 1] if 1 <= level <= len(self.delays_ms) else _UNKNOWN_LEVEL_MS

    def route(self, message: Message) -> int:
        """Send a message with a delay level to its level's queue; returns its delay in ms, or 0 if it has none.

        Half messages and rollbacks of transactions are not changed. Raises MessageError if ``DELAY`` is not a number.
        """
        properties = message.properties
        if "DELAY\x01" not in properties:
            return 0
        value = get_property(properties, DELAY)
        if value is None or message.sys_flag & _TRANSACTION_TYPE in _UNDECIDED:
            return 0
        level = _level(value)
        if level <= 0:
            return 0
        text = remove_properties(properties, _REPLACED)
        if level > len(self.delays_ms):
            level = len(self.delays_ms)
            text = with_properties(remove_properties(text, (DELAY,)), {DELAY: str(level)})
        message.properties = with_properties(text, {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)})
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        return self.delays_ms[level - 1]


def _level(value: str) -> int:
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 10:
        raise MessageError(f"DELAY must be a number, not {value!r:.60}")
    return int(value)
