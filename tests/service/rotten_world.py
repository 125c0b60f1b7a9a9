"""The simulated cluster, with takeover records, or progress records, that rot in the broker's log, many at a time.

A takeover record is real bytes here, and so is what becomes of it; a pull of it goes through what reads answers of
brokers. The ledger knows what stood there. By hand, any number of stories::

    python -m tests.service.rotten_world world|harsh|rotten|torn FIRST COUNT [resuming]
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from remoting.layout import MAGIC_AT, PREPARED_OFFSET_AT, QUEUE_OFFSET_AT
from remoting.messages.message import Message, encode_record
from service.core.commands import CommandVerdict
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, read_record
from service.core.torn_progress import picture_of
from service.link.cluster import pull_of
from service.running.entries import line_of, own_record
from tests.service.cluster_world import HarshWorld, World, resuming, story
from timewheel_client.consuming.pulled import read_pulled

ENTRY_QUEUE = ("TIMEWHEEL", "broker-e", 0)
EVERY_MS = 7000
"""How often records rot."""
SOON_MS = 4000
_FIELDS_END = 88


def raw_record(offset: int, owner: str, topic: str = "TIMEWHEEL", queue: int = 0, text: str | None = None) -> bytes:
    """A takeover record as Apache's broker stores it, without a checksum of properties; ``text``: other properties."""
    properties, body = own_record(LineKind.TAKEOVER, TW_OWNER=owner)
    message = Message(topic, queue, 0, 0, 1, bytes(8), 0, 0, body, properties if text is None else text)
    made = bytearray(encode_record(message, bytes(8), 1))
    made[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    made[PREPARED_OFFSET_AT : PREPARED_OFFSET_AT + 8] = bytes(8)
    return bytes(made)


def _cut(draw: random.Random, raw: bytes) -> bytes:
    at = draw.randrange(len(raw))
    return raw[:at] + bytes(len(raw) - at)


def _flip(draw: random.Random, raw: bytes, low: int = 0) -> bytes:
    at = draw.randrange(low, len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]


def _nuls(draw: random.Random, raw: bytes) -> bytes:
    at = draw.randrange(_FIELDS_END, len(raw) - 8)
    return raw[:at] + bytes(8) + raw[at + 8 :]


def _version(draw: random.Random, raw: bytes) -> bytes:
    magic = draw.choice((b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94", bytes(4)))
    return raw[:MAGIC_AT] + magic + raw[MAGIC_AT + 4 :]


class RottenWorld(World):
    """Takeover records rot every few seconds: each with the same chance, which differs from time to time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rotten: dict[int, bytes] = {}
        """What a pull brings instead of a record, by its offset."""
        self.kinds: list[str] = []
        self.quiet = seed % 2 == 1
        for when in range(3000, 90_000, EVERY_MS):
            self.at(when + self.random.randrange(EVERY_MS), self.rot)

    def rot(self) -> None:
        """Many takeover records at once; and what a stranger writes who has seen them."""
        draw = self.random
        share = draw.choice((0.3, 0.7, 1.0))
        for line in [line for line in self.entry_log if line.kind is LineKind.TAKEOVER]:
            if draw.random() < share:
                self.rotten[line.offset] = self._damaged(line)
        luck = draw.random()
        takeovers = [line for line in self.entry_log if line.kind is LineKind.TAKEOVER]
        if luck < 0.2 and takeovers:
            self.append(replace(draw.choice(takeovers), offset=-1))
        elif luck < 0.3:
            self.append(Line(-1, LineKind.TAKEOVER, owner=draw.choice(("", "stranger", "n0#1"))))
        elif luck < 0.4:
            # not of the present owner: who writes that is trusted with it
            generation = draw.choice([at for at in range(len(self.entry_log) + 9) if at != self._owner])
            self.append(Line(-1, LineKind.RELEASE, generation=generation))

    def append(self, line: Line) -> int:
        """One takeover record in three rots soon: between two looks of those who have to see it."""
        offset = super().append(line)
        if line.kind is LineKind.TAKEOVER and self.random.random() < 0.3:
            when = self.now + self.random.randrange(SOON_MS)
            self.at(when, lambda: self.rotten.setdefault(offset, self._damaged(self.entry_log[offset])))
        return offset

    def _damaged(self, line: Line) -> bytes:
        draw, offset = self.random, line.offset
        raw = raw_record(offset, line.owner)
        ways: dict[str, Callable[[], bytes]] = {
            "cut": lambda: _cut(draw, raw),
            "flip": lambda: _flip(draw, raw),
            "flip in body or properties": lambda: _flip(draw, raw, _FIELDS_END),
            "nul": lambda: _nuls(draw, raw),
            "version": lambda: _version(draw, raw),
            "no properties": lambda: raw_record(offset, line.owner, text=""),
            "old properties": lambda: raw_record(offset, line.owner, text="TW_KINE\x01takeover\x02"),
            "other queue": lambda: raw_record(draw.choice((offset, offset + 3)), line.owner, queue=1),
            "other topic": lambda: raw_record(offset, line.owner, topic="orders", text="TW_TOPIC\x01a\x02"),
            "other place": lambda: raw_record(max(0, offset + draw.choice((-9, -1, 1, 9))), line.owner),
            "missing": lambda: b"",
        }
        kind = draw.choice(sorted(ways))
        self.kinds.append(kind)
        return ways[kind]()

    def verdict(self) -> dict[str, int]:
        """As ever, but what was void behind a takeover counts if that takeover counted for no owner.

        It had rotted before anybody read it. Nobody was told the verdict; the command holds all the same.
        """
        rows = sorted({row for record in self.snapshots() for row in record.takeovers.items()})
        for line in list(self.void):
            before = rows[: bisect_left(rows, (line.offset, 0))]
            if not before or before[-1][1] != line.generation:
                continue
            self.void.remove(line)
            origin = self.origin.get(line.entry, -1)
            if self.verdicts[line.about]:
                continue
            self.verdicts[line.about].append(line.verdict)
            if line.verdict == CommandVerdict.DONE.value and not line.due_ms:
                self.cancelled.add(origin)
            elif line.verdict == CommandVerdict.DONE.value:
                self.early = [row for row in self.early if self.origin[row[0]] != origin or row[1] < line.due_ms]
        return super().verdict()

    def snapshots(self) -> list[ProgressRecord]:
        """What the progress says of takeovers."""
        return [row for row in map(read_record, self.progress_log) if row.is_snapshot]

    def pulled(self, begin: int) -> tuple[list[Line], int, int]:
        """As the service's link makes it of the bytes."""
        lines, next_offset, end = super().pulled(begin)
        found: list[Line] = []
        for line in lines:
            raw = self.rotten.get(line.offset)
            if raw is None:
                found.append(line)
                continue
            pull = pull_of(read_pulled(raw), line.offset, line.offset + 1, ENTRY_QUEUE)
            found += [line_of(message) for message in pull.messages if message.queue_offset >= line.offset]
            found += [Line(line.offset, damaged=True)] * bool(pull.bad)
        return sorted(found, key=lambda line: line.offset), next_offset, end


class TornWorld(World):
    """Progress records rot every few seconds, but for the first snapshot and what each owner has written last."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.torn: set[int] = set()
        self.forgetful = True
        for when in range(3000, 90_000, EVERY_MS):
            self.at(when + self.random.randrange(EVERY_MS), self.rot)

    def rot(self) -> None:
        """Many at once."""
        share = self.random.choice((0.1, 0.5, 1.0))
        last = {read_record(body).generation: at for at, body in enumerate(self.progress_log)}
        spared = {0, *last.values()}
        self.torn |= {at for at in range(len(self.progress_log)) if at not in spared and self.random.random() < share}

    def picture(self) -> Picture:
        """What is left of it."""
        rows = [None if at in self.torn else read_record(body) for at, body in enumerate(self.progress_log)]
        return picture_of(rows)


if __name__ == "__main__":
    kind = {"world": World, "harsh": HarshWorld, "rotten": RottenWorld, "torn": TornWorld}[sys.argv[1]]
    first, count = int(sys.argv[2]), int(sys.argv[3])
    unfair = takeovers = begun = sent = 0
    for seed in range(first, first + count):
        world = resuming(kind(seed)) if sys.argv[4:] else kind(seed)
        verdict = story(world)
        takeovers += world.takeovers
        begun, sent = begun + world.begun_early, sent + world.sent_early
        if any(verdict.values()):
            unfair += 1
            print(seed, verdict, flush=True)
    print(f"{unfair} of {count} stories ({kind.__name__}) from {first} on are not fair; {takeovers} takeovers")
    print(f"{begun} ownerships began, and {sent} messages were sent, before the older part was read")
