"""Bit rot: one bit of a file that nobody writes to any more is another one when the next broker starts.

A start may refuse, naming the file. It may also go on and lose what the bit belonged to, as long as it says so, by a
warning or when it is asked (`timewheel check`). What it must not do: lose silently, deliver anything early, twice, with
another content, or what was cancelled. The bit is never in what no checksum covers (docs/reliability.md, "Not
promised"): the tables under ``config``, and of a CommitLog record the fields before its body (and topic and properties
if nothing vouches for them). What stands in the log already is not the sender's any more; checksums say so to
`timewheel check`, that of the body to consumers, too.
"""

from __future__ import annotations

import logging
from pathlib import Path

from remoting.layout import FILE_HEADER_BYTES
from remoting.messages.message import record_size
from remoting.messages.proof import is_proof, proof_field
from store.disk.errors import StoreError
from tests.simulation.kinds import Kind, Violation
from tests.simulation.ledger import Entry, Sent
from tests.simulation.life import Life
from tests.simulation.world import ROOT

__all__ = ["Rotten"]

UNCHECKED = ("config", "abort", "lock", ".aside")
BODY_AT = {0: 88, 0x10: 100, 0x20: 100, 0x30: 112}
"""Where the body stands, by what sysFlag says of the hosts."""
_POPPED = (Kind.HELD, Kind.BLOCKED, Kind.REPEATED)
TOLD = frozenset({Kind.LOST, Kind.QUEUES, Kind.TRANSACTION, Kind.ANSWER, Kind.COMMAND, *_POPPED})
"""What a lost bit may cost, if somebody was told."""


class _Told(logging.Handler):
    """What the broker says about it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Rotten(Life):
    """A seed's story that ends with a stop or a kill, a flipped bit, and one more start.

    ``outcome`` says what became of it: ``refused``, ``told``, ``harmless``.
    """

    outcome = ""
    spot = ""
    place = -1
    """Where in the CommitLog the bit is, if it is there."""

    def run(self) -> None:
        """Live, end, let a bit flip, come back."""
        self.come_back(3, 0.0)
        self.live()
        world = self.world
        if self.rng.random() < 0.7:
            self.stop_cleanly()
        else:
            world.die(None, self.rng)
        if not self.flip():
            return
        told, logger = _Told(), logging.getLogger("broker")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(told)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        try:
            self.outcome = self.judge(told)
        finally:
            logger.removeHandler(told)
            logger.setLevel(level)
            logger.propagate = propagate

    def judge(self, told: _Told) -> str:
        """Start, let all time pass, and see what that has cost."""
        world = self.world
        try:
            world.boot()
        except StoreError as error:
            if str(ROOT) not in str(error):
                raise Violation(Kind.START, f"{self.spot}: refused, and no file is named: {error}") from error
            return "refused"
        except Violation as violation:
            return self.excuse(violation, told)
        try:
            self.finish()
        except Violation as violation:
            return self.excuse(violation, told)
        return "told" if told.lines else "harmless"

    def excuse(self, violation: Violation, told: _Told) -> str:
        """Whether something that is missing was reported; else it is a finding."""
        if violation.kind is Kind.CHECK:
            return "told"
        in_log = violation.kind is Kind.CONTENT and "/commitlog/" in self.spot
        in_log = in_log or (violation.kind is Kind.UNPINNED and self.is_in_half())
        if in_log or (violation.kind in TOLD and "and delivered" not in str(violation)):
            assert self.world.core is not None
            if told.lines or self.world.plugin.check() or self.world.store.check():
                return "told"
        raise Violation(violation.kind, f"{self.spot}: {violation}") from violation

    def is_in_half(self) -> bool:
        """Whether the bit is one of a half message: that is lost, so retention does not wait for it."""
        halves = [entry for entry in self.world.ledger.originals.values() if self._sent(entry).kind == "half"]
        return any(entry.offset <= self.place < entry.offset + entry.size for entry in halves)

    def _sent(self, entry: Entry) -> Sent:
        return self.world.ledger.sent[entry.number]

    def flip(self) -> bool:
        """Flip a bit of one closed file; False if there is none."""
        disk, rng = self.world.disk, self.rng
        journal = [(path.name, inode) for path, inode in disk._seen.items() if path.parent.name == "journal" and inode]
        # The files behind it are prepared, perhaps half made: only a bit of this one looks like a torn end.
        newest = max((name for name, inode in journal if any(inode.seen[FILE_HEADER_BYTES:])), default="")
        spots: list[tuple[Path, int, int]] = []
        for path, inode in disk._seen.items():
            if inode is None or any(word in str(path) for word in UNCHECKED):
                continue
            if path.parent.name == "commitlog":
                spots += [(path, at, size) for at, size in _checked(bytes(inode.seen))]
            elif inode.seen and path.name != newest:
                spots.append((path, 0, len(inode.seen)))
        if not spots:
            return False
        folder = rng.choice(sorted({path.parent for path, _, _ in spots}))
        path, start, size = rng.choice([spot for spot in spots if spot[0].parent == folder])
        at, bit = start + rng.randrange(size), 1 << rng.randrange(8)
        inode = disk._seen[path]
        assert inode is not None
        inode.seen[at] ^= bit
        if at < len(inode.medium):
            inode.medium[at] ^= bit
        if path.parent.name == "commitlog":
            self.place = int(path.name) + at
        self.spot = f"bit {bit:#04x} at {at} of {path} was flipped"
        self.world.tell(self.spot)
        return True


def _checked(data: bytes) -> list[tuple[int, int]]:
    """What of the records of a segment has a checksum: bodies, and topic with properties; with their sizes."""
    found, at = [], 0
    while at + 8 <= len(data) and data[at + 4 : at + 8] == bytes.fromhex("daa320a7"):
        size = record_size(data, at)
        record = data[at : at + size]
        body_at = BODY_AT[record[39] & 0x30]
        text_at = body_at + int.from_bytes(record[body_at - 4 : body_at], "big")
        if text_at > body_at:
            found.append((at + body_at, text_at - body_at))
        if is_proof(proof_field(record)):
            found.append((at + text_at, size - text_at))
        at += size
    return found
