"""The ledger of a storm: what was acknowledged, what stands in the topics, and what each consumer was given.

A message has a number, which its sender chose, and its sender's client gives it a unique key. Each time that a broker
stores it in the entry topic there is an *entry*, with a name (broker, queue, offset), which its delivery carries. A
client that gets no answer sends once more, with the same key: then there are two entries, and the service rightly
delivers both. So copies are counted by entry. Only a second copy of one entry is the service's. How often clients have
sent twice is counted beside it, and two entries of one number with different keys are an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from remoting.messages.message import StoredMessage
from remoting.messages.properties import UNIQ_KEY, get_property
from service.running.entries import DELAY_ID, DUE, KIND, REJECTED_TOPIC
from tests.service.process_cluster import NUMBER

__all__ = ["NUMBERS_EACH", "Ledger"]

NUMBERS_EACH = 1 << 24
"""Each sender has so many numbers: sender 0 those from 0 on."""


@dataclass
class Ledger:
    """What is known of all messages. With ``by_entry``, copies are counted by entry, and the entry topic is read, too.

    Of the threads that add to it, none adds to what another one does.
    """

    by_entry: bool = False
    wanted: dict[int, int] = field(default_factory=dict)
    """Number to the due time that its sender asked for, epoch ms, whether it was acknowledged or not."""
    sent: dict[int, int] = field(default_factory=dict)
    """The same, of what was acknowledged."""
    verdicts: dict[int, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Numbers of which nobody knows whether they were cancelled."""
    copies: Counter[int] = field(default_factory=Counter)
    entries: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Name of an entry to its number and unique key: what senders have written to the entry topic."""
    found: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Name of an entry to the numbers of its copies in the target topic."""
    received: dict[str, Counter[str]] = field(default_factory=dict)
    """Consumer to the names of what it was given, with how often."""
    early: int = 0
    rejected: int = 0
    late: list[int] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------ what is told

    def planned(self, number: int, due_ms: int) -> None:
        """A message is about to be sent."""
        self.wanted[number] = due_ms

    def acknowledged(self, number: int) -> None:
        """A sender was told that its message is stored."""
        self.sent[number] = self.wanted[number]

    def not_known(self, number: int) -> None:
        """A cancel failed in such a way that it may have taken effect."""
        self.sent.pop(number)
        self.unsure.add(number)

    def entry(self, shard: str, message: StoredMessage) -> None:
        """Read a record of the entry topic."""
        text = message.properties
        number = get_property(text, NUMBER)
        if number is not None and get_property(text, KIND) is None:
            self.entries[f"{shard}/{message.queue_offset}"] = (int(number), get_property(text, UNIQ_KEY) or "")

    def copy(self, message: StoredMessage) -> None:
        """Read a message of the target topic, or of the topic of rejected ones."""
        text = message.properties
        number = int(get_property(text, NUMBER) or -1)
        due_ms = max(int(get_property(text, DUE) or 0), self.wanted.get(number, 0))
        self.copies[number] += 1
        if self.by_entry:
            self.found[get_property(text, DELAY_ID) or ""].append(number)
        self.early += message.store_ms < due_ms
        self.rejected += message.topic == REJECTED_TOPIC
        self.late.append(message.store_ms - due_ms)

    def given(self, consumer: str, properties: Mapping[str, str], now_ms: int) -> None:
        """A consumer was given a message."""
        self.received[consumer][properties.get(DELAY_ID, "")] += 1
        self.early += now_ms < self.wanted.get(int(properties.get(NUMBER, -1)), 0)

    # ------------------------------------------------------------------------------------------------ what is wrong

    def missing(self) -> dict[str, int]:
        """What may still come.

        ``lost``: acknowledged, and not in the target topic. ``undelivered``: entries, acknowledged or not, of which
        there is no copy. ``missed by …``: copies that a consumer was not given.
        """
        gone = self._gone()
        rows = {"lost": sum(1 for number in list(self.sent) if number not in gone and not self.copies[number])}
        if self.by_entry:
            out = gone | self.unsure
            rows["undelivered"] = sum(
                1 for name, (number, _) in self.entries.items() if number not in out and name not in self.found
            )
        for consumer, names in self.received.items():
            rows[f"missed by {consumer}"] = sum(1 for name in self.found if name not in names)
        return rows

    def verdict(self) -> dict[str, int]:
        """All that is wrong: 0 everywhere if nothing is. Besides `missing`:

        ``twice``: entries (without ``by_entry``: numbers) with more than one copy. ``undead``: cancelled, and
        delivered. ``wrong``: told ``too_late``, and not delivered. ``strange``: copies that do not belong to an entry
        of their number. ``odd``: numbers of which there are entries with different keys. ``invented by …``: what a
        consumer was given and is not in the topic.
        """
        gone = self._gone()
        counts = map(len, self.found.values()) if self.by_entry else self.copies.values()
        rows = {
            **self.missing(),
            "early": self.early,
            "twice": sum(1 for count in counts if count > 1),
            "rejected": self.rejected,
            "undead": sum(1 for number in gone if self.copies[number]),
            "wrong": sum(1 for number, text in self.verdicts.items() if text == "too_late" and not self.copies[number]),
        }
        if self.by_entry:
            rows["strange"] = sum(
                1 for name, numbers in self.found.items() if set(numbers) != {self.entries.get(name, (-1, ""))[0]}
            )
            rows["odd"] = sum(1 for keys in self._keys().values() if len(set(keys)) > 1 or "" in keys)
        for consumer, names in self.received.items():
            rows[f"invented by {consumer}"] = sum(1 for name in list(names) if name not in self.found)
        return rows

    def _gone(self) -> set[int]:
        return {number for number, verdict in self.verdicts.items() if verdict in ("done", "already")}

    def _keys(self) -> dict[int, list[str]]:
        keys: dict[int, list[str]] = defaultdict(list)
        for number, key in self.entries.values():
            keys[number].append(key)
        return keys

    # ------------------------------------------------------------------------------------------------ what is told

    def sent_twice(self) -> Counter[int]:
        """Sender to how many of its messages its client has sent more than once."""
        return Counter(number // NUMBERS_EACH for number, keys in self._keys().items() if len(keys) > 1)

    def given_again(self) -> dict[str, int]:
        """Consumer to how often it was given what it had been given before."""
        return {consumer: sum(names.values()) - len(names) for consumer, names in self.received.items()}

    def late_ms(self, share: float) -> int:
        """A percentile of the lateness in the log."""
        rows = sorted(self.late)
        return rows[min(len(rows) - 1, int(share * len(rows)))] if rows else 0
