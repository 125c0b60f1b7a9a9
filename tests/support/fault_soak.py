"""A soak: the real broker under a mixed load for as long as one likes, and what it costs it, sample by sample.

Beside the steady load of `tests.support.fault_load` (timed near and far, hot seconds, batches, levels, ordinary ones)
there are timed messages that are recalled, transactions that are committed or rolled back, consumers that die or leave
and come back, connections that open and close, in the middle of a frame too, and readers that take nothing. Segments
are small and kept no longer than they must, so that the store's files are made and deleted all the time.

In the end the ledger is held against the CommitLog (hard links keep its segments), and the samples are held against a
straight line: memory, descriptors and threads must not grow. As a program::

    python -m tests.support.fault_soak FOLDER --minutes 30
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fault_consumer import read_received
from tests.support.fault_ledger import Verdict, stored_messages
from tests.support.fault_storm import Storm, check_store
from tests.support.pull_fields import pull_fields
from tests.support.wait import let_pass
from tests.support.wire import Wire, WireError
from tests.support.wire_admin import create_group

__all__ = ["Sample", "Soak", "SoakResult", "main"]

SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "fileReservedTime": "0",
    "deleteWhen": ";".join(map(str, range(24))),
    "timewheelSegmentBytes": str(1 << 20),
    "timewheelNearMs": "2000",
    "timewheelNearBytes": str(4 << 20),
    "timewheelRunsMax": "8",
    "recallMessageEnable": "true",
    "connectionBytesMax": str(32 << 20),
    "serverChannelMaxIdleTimeSeconds": "20",
}
RECALLED, DECIDED, GROUP = "recalled", "decided", "soaking"
GIVEN_UP_SECONDS = 5
"""A half message that is decided sooner has not been given up (transactionTimeOut: 6 s)."""
RSS_GROWTH_BYTES = 16 << 20
FILES_GROWTH = 10
THREADS_GROWTH = 2
_SEND = {"a": GROUP, "c": "TBW102", "d": 4, "f": 0, "g": 1, "h": 0, "j": 0, "k": "false"}
_PULL = pull_fields(GROUP, "storm")
_CODE_SEND, _CODE_PULL, _CODE_END, _CODE_RECALL, _CODE_OFFSET = 310, 11, 37, 370, 30
_COMMIT, _ROLLBACK = 8, 12
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Sample:
    """What the broker's process costs at one moment."""

    seconds: float
    rss_bytes: int
    files: int
    threads: int
    cpu_percent: float
    store_bytes: int
    segments: int
    pending: int


@dataclass(slots=True)
class SoakResult:
    """What came out; ``wrong`` is empty when all is well."""

    wrong: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


class _Others:
    """What happens beside the steady load, in threads of this process; each ends with `stop`."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        self.due_ms: dict[str, int] = {}
        """Timed messages that were acknowledged, and not recalled."""
        self.recalled: set[str] = set()
        self.uncertain: set[str] = set()
        """Sent or recalled without an answer."""
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.errors: list[str] = []
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        works: list[Callable[[], None]] = [self._recalls, self._transactions, self._visitors]
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]

    def start(self) -> None:
        """Begin."""
        with Wire(self.address) as wire:
            wire.create_topic(RECALLED)
            wire.create_topic(DECIDED)
            create_group(wire, GROUP)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all of it."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def _recalls(self) -> None:
        """Twenty timed messages a second; half of them are recalled at some moment before they are due."""
        rng = random.Random(self._rng.random())
        number = 0
        planned: list[tuple[float, str, str]] = []
        with Wire(self.address, 30) as wire:
            while not self._ended.wait(0.05):
                number += 1
                key, due_ms = f"R{number:031d}", int(time.time() * 1000) + rng.randint(500, 20_000)
                text = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
                ext, _ = wire.ask(_CODE_SEND, {**_SEND, "b": RECALLED, "e": number % 4, "i": text}, key.encode())
                self.due_ms[key] = due_ms
                if rng.random() < 0.5 and "recallHandle" in ext:
                    at = time.time() + rng.random() * (due_ms / 1000 - time.time())
                    heapq.heappush(planned, (at, key, ext["recallHandle"]))
                while planned and planned[0][0] <= time.time():
                    _, key, handle = heapq.heappop(planned)
                    fields = {"producerGroup": GROUP, "topic": RECALLED, "recallHandle": handle}
                    try:
                        wire.ask(_CODE_RECALL, fields)
                    except WireError as error:
                        if error.code != 604:  # too late: it was delivered
                            raise
                        self.counts["recalled too late"] += 1
                        continue
                    self.recalled.add(key)
        self.counts["recalled"] = len(self.recalled)

    def _transactions(self) -> None:
        """Ten a second, a third of them rolled back."""
        number = 0
        with Wire(self.address, 30) as wire:
            while not self._ended.wait(0.1):
                number += 1
                key = f"T{number:031d}"
                text = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01{key}\x02"
                fields = {**_SEND, "b": DECIDED, "e": number % 4, "f": 4, "i": text}
                ext, _ = wire.ask(_CODE_SEND, fields, key.encode())
                stored_at = time.monotonic()
                back = number % 3 == 0
                decision = {
                    "producerGroup": GROUP,
                    "tranStateTableOffset": ext["queueOffset"],
                    "commitLogOffset": int(ext["msgId"][16:], 16),
                    "commitOrRollback": _ROLLBACK if back else _COMMIT,
                    "msgId": key,
                    "transactionId": key,
                }
                try:
                    wire.ask(_CODE_END, decision)
                except WireError as error:
                    # With a fileReservedTime of 0 the first round of checks gives up what stood undecided for so long.
                    if error.code != 604 or time.monotonic() - stored_at < GIVEN_UP_SECONDS:
                        raise
                    self.counts["given up"] += 1
                    continue
                (self.rolled_back if back else self.committed).add(key)
        self.counts["transactions"] = number

    def _visitors(self) -> None:
        """Connections that come and go; now and then a reader that takes nothing."""
        rng = random.Random(self._rng.random())
        host, port = self.address.rsplit(":", 1)
        slow: list[tuple[float, socket.socket]] = []
        while not self._ended.wait(0.1):
            draw = rng.random()
            sock = socket.socket()
            sock.settimeout(30)
            if draw < 0.02:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(port)))
            self.counts["visitors"] += 1
            if draw < 0.02:
                self.counts["slow readers"] += 1
                sock.setblocking(False)
                _send_some(sock, _frame(_CODE_PULL, _PULL) * 60)
                slow.append((time.monotonic() + rng.uniform(5, 40), sock))
                continue
            if draw < 0.3:
                sock.sendall(struct.pack(">ii", 4 << 20, 100) + bytes(rng.randrange(200_000)))
                if draw < 0.15:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif draw < 0.8:
                sock.sendall(_frame(_CODE_OFFSET, {"topic": "storm", "queueId": 0}))
                if not sock.recv(4096):
                    self.errors.append("a visitor was not answered")
            sock.close()
            while slow and slow[0][0] < time.monotonic():
                slow.pop(0)[1].close()
        for _, sock in slow:
            sock.close()


class Soak:
    """One broker, its load, and the samples."""

    def __init__(self, folder: Path, *, seed: int = 1, rate: float = 600, due_to_ms: int = 60_000) -> None:
        load: dict[str, object] = {"rate": rate, "due_to_ms": due_to_ms, "hot": 0.05, "never": 0.01}
        self.storm = Storm(folder, seed=seed, settings=SETTINGS, load_options=load, keep=True)
        self.folder = folder
        self.result = SoakResult()
        self._rng = random.Random(seed)
        self._due_to_ms = due_to_ms
        self._begin = time.monotonic()
        self._cpu = (0.0, 0.0)

    def run(self, seconds: float, every: float = 5.0, consumer_seconds: float = 20.0) -> SoakResult:
        """Soak for so long, and judge."""
        storm = self.storm
        with storm:
            storm.start()
            others = _Others(storm.broker.address, self._rng.getrandbits(32))
            others.start()
            files_at_start = self._sample().files
            self.result.samples.clear()
            storm.begin_load()
            storm.begin_consumer()
            self._begin = time.monotonic()
            self._watch(seconds, every, consumer_seconds)
            others.stop()
            storm.end_load()
            pending = storm.settle(self._due_to_ms / 1000 + 180, never=True)
            storm.end_consumer()
            let_pass(1)
            last = self._sample()
            self.result.figures["files at the end above the start"] = last.files - files_at_start
            assert storm.broker.stop() == 0, storm.broker.child.tail()
            verdict = storm.judge()
            if not verdict.never_acknowledged <= pending <= verdict.never_sent:
                verdict.add("pending", "", f"{pending}, not {verdict.never_acknowledged} to {verdict.never_sent}")
            self._judge(verdict, others)
            status, text = check_store(storm.broker)
            if status:
                self.result.wrong.append(f"timewheel check: {text}")
        return self.result

    # ------------------------------------------------------------------------------------------ while it runs

    def _watch(self, seconds: float, every: float, consumer_seconds: float) -> None:
        storm = self.storm
        next_sample, next_consumer = every, consumer_seconds
        while (now := time.monotonic() - self._begin) < seconds:
            assert storm.broker.child.running(), f"the broker ended by itself:\n{storm.broker.child.tail()}"
            storm.keep_segments()
            if now >= next_sample:
                next_sample += every
                self._sample()
            if now >= next_consumer:
                next_consumer += consumer_seconds
                if self._rng.random() < 0.5:
                    storm.kill_consumer()
                    self.result.counts["consumers killed"] = self.result.counts.get("consumers killed", 0) + 1
                else:
                    storm.end_consumer()
                    self.result.counts["consumers left"] = self.result.counts.get("consumers left", 0) + 1
                storm.begin_consumer()
            let_pass(0.5)

    def _sample(self) -> Sample:
        """Look at the process and its files."""
        broker = self.storm.broker
        proc = Path(f"/proc/{broker.child.process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        now = time.monotonic()
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        before, self._cpu = self._cpu, (now, cpu)
        sample = Sample(
            round(now - self._begin, 1),
            int((proc / "statm").read_text().split()[1]) * _PAGE,
            len(list((proc / "fd").iterdir())),
            int(fields[17]),
            round(100 * (cpu - before[1]) / (now - before[0]), 1) if before[0] else 0.0,
            _disk_bytes(broker.store),
            len(list((broker.store / "commitlog").iterdir())),
            int(broker.info()["timewheelPending"]),
        )
        self.result.samples.append(sample)
        with (self.folder / "samples").open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")
        return sample

    # ------------------------------------------------------------------------------------------ the verdict

    def _judge(self, verdict: Verdict, others: _Others) -> None:
        result = self.result
        result.wrong += [*verdict.wrong, *others.errors]
        result.counts |= {**verdict.counts, **others.counts}
        result.counts |= {kind: verdict.counts[f"WRONG {kind}"] for kind in ("lost", "twice", "early")}
        result.figures |= {f"late ms p{share:g}": verdict.late(share / 100) for share in (50, 99, 99.9, 100)}
        self._judge_others(others)
        received = read_received(self.storm.received)
        strange = {(row.key, row.queue, row.queue_offset, row.store_ms) for row in received} - verdict.places
        result.counts["received"] = len({row.key for row in received})
        if strange:
            result.wrong.append(f"received what is not stored so: {sorted(strange)[:3]}")
        result.counts["CommitLog segments deleted"] = len(list((self.folder / "kept" / "commitlog").iterdir())) - len(
            list((self.storm.broker.store / "commitlog").iterdir())
        )

    def _judge_others(self, others: _Others) -> None:
        """Recalled ones never, the other timed ones once and not early; committed ones once, rolled back ones never."""
        wrong = self.result.wrong
        seen: Counter[str] = Counter()
        for stored in stored_messages(self.storm.keep or self.storm.broker.store):
            if stored.topic not in (RECALLED, DECIDED):
                continue
            seen[stored.key] += 1
            if stored.topic == RECALLED and stored.store_ms < others.due_ms.get(stored.key, 0):
                wrong.append(f"early: {stored.key}")
        never = others.recalled | others.rolled_back
        once = (others.due_ms.keys() - others.recalled) | others.committed
        wrong += [f"delivered although recalled or rolled back: {key}" for key in sorted(never & seen.keys())[:8]]
        wrong += [f"lost: {key}" for key in sorted(once - seen.keys())[:8]]
        wrong += [f"twice: {key}" for key, count in seen.items() if count > 1][:8]

    def judge_growth(self, warm_seconds: float) -> None:
        """Hold the samples after so many seconds against a straight line."""
        result = self.result
        samples = [sample for sample in result.samples if warm_seconds <= sample.seconds][:-1]
        if len(samples) < 10:
            result.wrong.append(f"only {len(samples)} samples after the warm-up of {warm_seconds:g} s")
            return
        seconds = [sample.seconds for sample in samples]
        span = seconds[-1] - seconds[0]
        for name, most in (("rss_bytes", RSS_GROWTH_BYTES), ("files", FILES_GROWTH), ("threads", THREADS_GROWTH)):
            values = [float(getattr(sample, name)) for sample in samples]
            slope = statistics.linear_regression(seconds, values).slope
            result.figures[f"{name} at least"] = min(values)
            result.figures[f"{name} at most"] = max(values)
            result.figures[f"{name} growth an hour"] = round(slope * 3600, 2)
            if slope * span > most:
                result.wrong.append(f"{name} grew by {slope * span:.0f} in {span:.0f} s, at most {most} is flat")
        result.figures["cpu percent"] = round(statistics.fmean(sample.cpu_percent for sample in samples), 1)
        result.figures["store bytes at most"] = max(sample.store_bytes for sample in samples)
        result.figures["minutes"] = round(result.samples[-1].seconds / 60, 1)

    def write(self) -> str:
        """Write ``soak.json``, and a table of at most twenty lines for the eye."""
        (self.folder / "soak.json").write_text(json.dumps(asdict(self.result), indent=1))
        samples = self.result.samples
        lines = [f"{'s':>7} {'RSS MiB':>8} {'files':>6} {'threads':>7} {'CPU %':>6} {'store MiB':>9} {'pending':>8}"]
        lines += [
            f"{sample.seconds:7.0f} {sample.rss_bytes / 2**20:8.1f} {sample.files:6d} {sample.threads:7d} "
            f"{sample.cpu_percent:6.1f} {sample.store_bytes / 2**20:9.1f} {sample.pending:8d}"
            for sample in samples[:: max(1, len(samples) // 20)]
        ]
        lines += [f"{name}: {value:g}" for name, value in self.result.figures.items()]
        lines.append(", ".join(f"{name} {count}" for name, count in sorted(self.result.counts.items())))
        lines.append("\n".join(self.result.wrong) or "nothing is wrong")
        return "\n".join(lines)


def _disk_bytes(folder: Path) -> int:
    """Blocks of a store's files without its logs; what goes away meanwhile does not count."""
    blocks = 0
    for parent, _, names in os.walk(folder):
        for name in names if not parent.endswith("/logs") else ():
            try:
                blocks += Path(parent, name).stat().st_blocks
            except FileNotFoundError:
                pass
    return blocks * 512


def _frame(code: int, fields: dict[str, Any]) -> bytes:
    ext = {name: str(value) for name, value in fields.items()}
    head = json.dumps({"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399})
    return struct.pack(">ii", 4 + len(head), len(head)) + head.encode()


def _send_some(sock: socket.socket, data: bytes) -> None:
    try:
        sock.send(data)
    except BlockingIOError:
        pass


def main(arguments: list[str] | None = None) -> int:
    """Soak from the command line; exit status 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fault_soak")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="minutes that do not count for growth")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=600)
    options = parser.parse_args(arguments)
    soak = Soak(options.folder, seed=options.seed, rate=options.rate)
    soak.run(options.minutes * 60)
    soak.judge_growth(min(options.warm_up, options.minutes / 3) * 60)
    print(soak.write())
    return 1 if soak.result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
