"""The cost of pending messages: ``python -m bench.spill_bench [--count N] [--body BYTES] [--spread SECONDS]``.

Accepts messages into a spill store of its own, frame by frame as a busy network loop does, with the background
work in between; then cancels some, scans and reads all, closes, and opens again. Beside each figure is the cost of
the bare system calls for the same bytes on the same disk. Microseconds are processor time of the thread, so that a
busy machine does not spoil them; milliseconds are wall time.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from store.disk.delay_id import delay_id
from store.disk.files import Files
from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore

__all__ = ["main"]

FRAME_RECORDS = 16
STORE_ID = bytes(range(16))


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Bench:
    """One run of the benchmark; `lines` collects the report."""

    def __init__(self, directory: Path, count: int, body: int, spread_ms: int, options: SpillOptions) -> None:
        self.directory = directory
        self.count = count
        self.size = body + 180
        self.spread_ms = spread_ms
        self.options = options
        self.random = random.Random(1)
        self.section: bytes | None = None
        self.lines: list[tuple[str, str]] = []
        self.now_ms = 1_700_000_000_000
        self.slices: list[int] = []

    def say(self, what: str, value: str) -> None:
        """Add a line to the report, and print it."""
        self.lines.append((what, value))
        print(f"{what:<44}{value}", flush=True)

    def open(self) -> SpillStore:
        """Open the store."""
        return SpillStore.open(Files(), self.directory, STORE_ID, self.options, self.section)

    def checkpoint(self, store: SpillStore) -> float:
        """Take a checkpoint as the broker does; answers the seconds under the lock."""
        begin = time.perf_counter()
        with store.lock:
            self.section = store.snapshot()
        held = time.perf_counter() - begin
        store.journal.sync()
        store.durable()
        return held

    def step(self, store: SpillStore) -> bool:
        """One timed slice of background work."""
        begin = time.thread_time_ns()
        more = store.spill_step(self.now_ms)
        self.slices.append(time.thread_time_ns() - begin)
        return more

    def bare(self) -> float:
        """Seconds to pwrite the same frames to a zero-filled file."""
        frame = os.urandom(FRAME_RECORDS * (self.size + 28) + 48)
        frames = min(self.count // FRAME_RECORDS, (64 << 20) // len(frame))
        path = self.directory / "bare"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        for at in range(0, 64 << 20, 1 << 20):
            os.pwrite(fd, bytes(1 << 20), at)
        begin = time.thread_time_ns()
        for number in range(frames):
            os.pwrite(fd, frame, number * len(frame))
        spent = time.thread_time_ns() - begin
        os.close(fd)
        path.unlink()
        return spent / frames / FRAME_RECORDS / 1000

    def fill(self, store: SpillStore) -> None:
        """Accept everything."""
        template = os.urandom(self.size)
        append_ns = publish_ns = 0
        bare = self.bare()
        held: list[float] = []
        for number in range(0, self.count, FRAME_RECORDS):
            entries = []
            for _ in range(min(FRAME_RECORDS, self.count - number)):
                id_ = store.next_id()
                due = self.now_ms + 60_000 + self.random.randrange(max(1, self.spread_ms))
                entries.append((due, id_, template[:-8] + id_.to_bytes(8, "little")))
            begin = time.thread_time_ns()
            block = store.append(entries)
            middle = time.thread_time_ns()
            with store.lock:
                store.publish(block)
            publish_ns += time.thread_time_ns() - middle
            append_ns += middle - begin
            while number % 1024 == 0 and self.step(store):
                pass
            if number % 65536 == 0:
                held.append(self.checkpoint(store))
        self.say("append, µs a message", f"{append_ns / self.count / 1000:.2f} (bare pwrite {bare:.2f})")
        self.say("publish, µs a message", f"{publish_ns / self.count / 1000:.2f}")
        self.settle(store, held)

    def settle(self, store: SpillStore, held: list[float]) -> None:
        """Let the background work come to rest."""
        for _ in range(4):
            while self.step(store):
                pass
            held.append(self.checkpoint(store))
        slices = sorted(value / 1000 for value in self.slices)
        middle, high = slices[len(slices) // 2], slices[len(slices) * 99 // 100]
        text = f"{middle:.0f} / {high:.0f} / {slices[-1]:.0f} ({sum(slices) / self.count:.2f} µs a message)"
        self.say("spill slices, µs p50 / p99 / max", text)
        self.say("snapshot under the lock, ms max", f"{max(held) * 1e3:.2f}, {len(self.section or b''):,} bytes")
        self.say("runs / journal bytes", f"{store.run_count} / {store.journal_bytes:,}")

    def cancel(self, store: SpillStore, share: float) -> None:
        """Cancel a share of everything, at random."""
        first = delay_id(store.epoch, 0)
        chosen = self.random.sample(range(self.count), int(self.count * share))
        spent: list[int] = []
        for number in chosen[:20_000]:
            begin = time.thread_time_ns()
            with store.lock:
                store.cancel(first + number)
            spent.append(time.thread_time_ns() - begin)
        self.say("cancel, µs mean of 20,000 at random", f"{statistics.fmean(spent) / 1e3:.1f}")
        begin = time.thread_time_ns()
        rest = np.array(chosen[20_000:], np.int64) + first
        with store.lock:
            store.restore_delivered_many(rest.tolist(), [0] * len(rest))
        each = (time.thread_time_ns() - begin) / 1000 / max(1, len(rest))
        self.say("marked done by id, µs each, at once", f"{each:.2f}")
        held = self.checkpoint(store)
        self.say("snapshot then, ms", f"{held * 1e3:.2f}, {len(self.section or b''):,} bytes")

    def drain(self, store: SpillStore, count: int, read: bool, portion: int) -> None:
        """Scan (and read) in key order as the sweeper does."""
        after = (-1, 0)
        seen = scan_ns = read_ns = 0
        longest = 0
        while seen < count:
            begin = time.thread_time_ns()
            with store.lock:
                columns = store.scan(after, 1 << 61, portion)
            middle = time.thread_time_ns()
            longest = max(longest, middle - begin)
            if not len(columns):
                break
            if read:
                with store.lock:
                    store.read(columns.refs)
            read_ns += time.thread_time_ns() - middle
            scan_ns += middle - begin
            seen += len(columns)
            after = (columns.dues[-1], columns.ids[-1])
        if seen:
            text = f"{scan_ns / seen / 1e3:.2f} (longest call {longest / 1e6:.1f} ms)"
            self.say(f"scan, µs a message, {portion} at a time", text)
            if read:
                self.say(f"read, µs a message, {portion} at a time", f"{read_ns / seen / 1e3:.2f}")

    def run(self, cancel: float) -> None:
        """The whole of it."""
        gc.collect()
        before = resident_bytes()
        self.say("resident before, MB", f"{before / 1e6:.1f}")
        store = self.open()
        self.fill(store)
        gc.collect()
        self.report_memory("resident, all pending", before, store)
        if cancel:
            self.cancel(store, cancel)
            self.report_memory("resident, after cancels", before, store)
        self.drain(store, min(self.count, 200_000), True, 256)
        self.drain(store, min(self.count, 200_000), False, 4096)
        self.report_memory("resident, after scans", before, store)
        pending = store.pending_count
        store.close()
        del store
        gc.collect()
        begin = time.perf_counter()
        store = self.open()
        opened = time.perf_counter()
        with store.lock:
            columns = store.scan((-1, 0), 1 << 61, 1)
            store.read(columns.refs)
        text = f"{(opened - begin) * 1e3:.1f} / {(time.perf_counter() - begin) * 1e3:.1f}"
        self.say("restart, ms to open / to the first message", text)
        if store.pending_count != pending:
            raise SystemExit(f"{pending} were pending, {store.pending_count} are after the restart")
        store.close()

    def report_memory(self, what: str, before: int, store: SpillStore) -> None:
        """A line of memory."""
        used = resident_bytes()
        each = (used - before) / max(1, store.pending_count)
        self.say(what + ", MB", f"{used / 1e6:.1f} ({each:.1f} bytes each of {store.pending_count:,} pending)")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--spread", type=float, default=3600, help="seconds over which the due times are spread")
    parser.add_argument("--cancel", type=float, default=0.5, help="share that is cancelled")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: the temporary directory)")
    parser.add_argument("--segment-mib", type=int, default=64)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="spill-bench-", dir=arguments.dir))
    options = SpillOptions(segment_bytes=arguments.segment_mib << 20)
    try:
        bench = Bench(directory, arguments.count, arguments.body, int(arguments.spread * 1000), options)
        bench.run(arguments.cancel)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
