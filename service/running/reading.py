"""The result of one pull from an entry queue: lines for the shard, and their messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.messages.message import StoredMessage
from service.core.lines import Line
from service.link.cluster import Pull
from service.running.entries import Waiting, damaged, line_of, rejected_of, waiting_of

__all__ = ["EntryPull", "reading_of"]


@dataclass(slots=True)
class EntryPull:
    """``lines`` in order; ``messages`` by offset; ``why`` some cannot be read; ``missing``: a text, or ""."""

    lines: list[Line]
    messages: dict[int, StoredMessage]
    why: dict[int, str] = field(default_factory=dict)
    missing: str = ""

    def faults(self) -> list[str]:
        """Texts about records that cannot be read."""
        return [f"entry {offset}: {text}" for offset, text in self.why.items()] + [self.missing] * bool(self.missing)

    def waiting(self, offset: int, shard: str) -> Waiting:
        """The delivery of an entry; for one that cannot be read, a rejected message with its bytes."""
        if offset in self.why:
            return rejected_of(self.messages[offset], shard, self.why[offset])
        return waiting_of(self.messages[offset], shard)


def reading_of(pull: Pull, begin: int, topic: str, now_ms: int) -> EntryPull:
    """Split the result of a pull from an offset on."""
    messages = {message.queue_offset: message for message in pull.messages}
    found = EntryPull([], messages)
    for record in pull.bad:
        found.why[record.queue_offset] = f"its record in the entry topic is damaged: {record.reason}"
        messages[record.queue_offset] = damaged(record, topic, now_ms)
    found.lines = [Line(at, damaged=True) if at in found.why else line_of(messages[at]) for at in sorted(messages)]
    count = pull.next_offset - begin - sum(begin <= at < pull.next_offset for at in messages)
    if count > 0:
        found.missing = (
            f"{count} of the records from offset {begin} to {pull.next_offset - 1} are missing in the answer"
        )
    return found
