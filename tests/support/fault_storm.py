"""A broker that is killed again and again under a steady load, and the ledger that says what that did.

`Storm` starts broker and load, kills and restarts at random moments, waits in the end until nothing is pending, and
judges. As a program it does so for as long as one likes::

    python -m tests.support.fault_storm FOLDER --kills 200 --flush SYNC_FLUSH --seed 5 --inject 0.5
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.support.fault_consumer import read_received
from tests.support.fault_inject import Control
from tests.support.fault_ledger import Verdict, judge
from tests.support.ours import ROOT, OurBroker
from tests.support.processes import Child
from tests.support.wait import happens, let_pass
from tests.support.wire import Wire

__all__ = ["TINY", "FaultyBroker", "Storm", "check_store", "main"]

TINY = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "timewheelSegmentBytes": str(256 << 10),
    "timewheelNearMs": "2000",
    "timewheelNearBytes": str(1 << 20),
    "timewheelRunsMax": "4",
}
"""Sizes at which segments roll, spill and merge every second."""
READY_SECONDS = 60.0
QUIET_SECONDS = 1.0
CHECK_SECONDS = 1800
"""For `timewheel check` of some hundred megabytes, on a machine with much else to do."""
LEVEL_SECONDS = 6.0
"""Longer than the longest level of the load."""
_RUNTIME_INFO = 28


class FaultyBroker(OurBroker):
    """Our broker inside `tests.support.fault_inject`, quick to start and to kill."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, store: Path | None = None) -> None:
        super().__init__(folder, settings, store=store)
        self.control = Control(folder / "control")
        self.starts = 0

    def command(self) -> list[str]:
        """The same command line by another program."""
        command = super().command()
        at = command.index("broker.cli")
        return [*command[:at], "tests.support.fault_inject", str(self.folder / "control"), *command[at + 1 :]]

    def spawn(self) -> Child:
        """Start the process without waiting; it writes a log of its own."""
        self.starts += 1
        self.log = self.folder / f"broker.{self.starts}.log"
        return super().spawn()

    def wait_ready(self, seconds: float = READY_SECONDS) -> bool:
        """Wait for the ready line; False if the process ended before, AssertionError if it takes too long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if b"ready: " in self.log.read_bytes():
                return True
            if not self.child.running():
                return b"ready: " in self.log.read_bytes()
            let_pass(0.005)
        raise AssertionError(f"not ready in {seconds} s:\n{self.child.tail()}")

    def up(self) -> Self:
        """Start, and wait until it is ready; AssertionError with its log when it ends instead."""
        self.spawn()
        assert self.wait_ready(), f"the broker ended with {self.child.process.returncode}:\n{self.child.tail()}"
        return self

    def info(self) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO."""
        with Wire(self.address, READY_SECONDS) as wire:
            return dict(json.loads(wire.ask(_RUNTIME_INFO, {})[1])["table"])


class Storm:
    """One store, one load, many kills. Use it as a context; nothing of it outlives that."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 1,
        flush: str = "ASYNC_FLUSH",
        settings: dict[str, str] | None = None,
        store: Path | None = None,
        load_options: dict[str, object] | None = None,
        keep: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rng = random.Random(seed)
        self.ledger = folder / "ledger"
        self.received = folder / "received"
        self.broker = FaultyBroker(folder, {**TINY, "flushDiskType": flush, **(settings or {})}, store)
        options = {"seed": seed, **(load_options or {})}
        self._load_words = [w for k, v in options.items() for w in ("--" + k.replace("_", "-"), str(v))]
        self._load: subprocess.Popen[str] | None = None
        self.vary = False
        """Whether each start has another flush mode and another size of segments."""
        self.kills = self.kills_while_starting = self.kills_in_a_call = 0
        self.start_ms: list[int] = []
        self.started: list[tuple[int, int]] = []
        """Of each time that it was up: ready, killed (epoch ms)."""
        self.sent: dict[str, int] = {}
        self._load_end = 0.0
        self._level_seconds = LEVEL_SECONDS if float(str(options.get("levels", 1))) else 0.0
        self.keep = folder / "kept" if keep else None
        """Where hard links keep CommitLog segments that the broker removes when they are old."""
        self._consumer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_consumer()
        if self._load is not None:
            self._load.kill()
            self._load.communicate()
        self.broker.kill()

    # ------------------------------------------------------------------------------------------ load

    def begin_load(self) -> None:
        """Start to send."""
        words = [sys.executable, "-m", "tests.support.fault_load", self.broker.address, str(self.ledger)]
        with open(self.folder / "load.log", "ab") as log:
            self._load = subprocess.Popen(
                [*words, *self._load_words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_acknowledged(self, count: int = 500, seconds: float = 60) -> None:
        """Wait until that many more messages are acknowledged: it takes what is sent (again)."""
        self.wait_fates("A", count, seconds)

    def wait_fates(self, fates: str, count: int, seconds: float = 60) -> None:
        """Wait until that many more messages have one of these fates (`tests.support.fault_load`)."""
        offset = self.ledger.stat().st_size if self.ledger.exists() else 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.ledger.exists():  # the load begins
                let_pass(0.1)
                continue
            with open(self.ledger, "rb") as file:
                file.seek(offset)
                if sum(line[:1] in fates for line in file.read().decode().splitlines()) >= count:
                    return
            let_pass(0.1)
        raise AssertionError(f"not {count} messages more with fate {fates}:\n{self.broker.child.tail()}")

    def end_load(self) -> None:
        """Stop sending; the ledger is complete."""
        if self._load is not None:
            output, _ = self._load.communicate(timeout=60)
            assert self._load.returncode == 0
            self.sent = json.loads(output)
            self._load = None
        self._load_end = time.monotonic()

    # ------------------------------------------------------------------------------------------ consumer

    def begin_consumer(self) -> None:
        """Start a consumer, and wait until it has joined: the broker must be up until then."""
        command = [sys.executable, "-m", "tests.support.fault_consumer", self.broker.namesrv, str(self.received)]
        path = self.folder / "consumer.log"
        with open(path, "ab") as log:
            begin = log.tell()
            self._consumer = consumer = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        happens(lambda: b"started" in path.read_bytes()[begin:] or consumer.poll() is not None, 60)

    def kill_consumer(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        if self._consumer is not None:
            self._consumer.kill()
            self._consumer.communicate()
            self._consumer = None

    def end_consumer(self) -> None:
        """Let it acknowledge what it has, and leave the group."""
        if self._consumer is not None:
            self._consumer.communicate(timeout=30)
            log = (self.folder / "consumer.log").read_text()
            assert self._consumer.returncode == 0, log
            self._consumer = None

    def wait_received(self, count: int, seconds: float = 60) -> set[str]:
        """Wait until the consumer has received that many different messages; all of them so far."""
        until = time.monotonic() + seconds
        while self._consumer is not None:
            keys = {row.key for row in read_received(self.received)}
            if len(keys) >= count or time.monotonic() > until:
                return keys
            let_pass(0.2)
        return set()

    # ------------------------------------------------------------------------------------------ kills

    def start(self) -> None:
        """Start the broker and note how long that took."""
        begin = time.monotonic()
        if self.vary:
            self.broker.settings["flushDiskType"] = self.rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
            self.broker.settings["timewheelSegmentBytes"] = str(self.rng.randint(100_000, 400_000))
        self.broker.up()
        self.start_ms.append(int((time.monotonic() - begin) * 1000))
        self.started.append((int(time.time() * 1000), 0))

    def down(self) -> None:
        """SIGKILL now."""
        self.keep_segments()
        self.broker.kill()
        self.kills += 1
        self.note_down()

    def note_down(self) -> None:
        """Note that it is down now."""
        self.started[-1] = (self.started[-1][0], int(time.time() * 1000))

    def kill_after(self, seconds: float) -> None:
        """SIGKILL after so long, and a start at once."""
        self._watch(seconds)
        self.down()
        self.start()

    def kill_in_a_call(self, calls: int, where: int = 0, seconds: float = 2.5) -> None:
        """Let it die inside its so many-th disk call from now (a write is then torn), and start it at once."""
        self.broker.control["die_where"] = where
        self.broker.control["die_in"] = calls
        child = self.broker.child
        try:
            status = child.process.wait(seconds)
            assert status == -signal.SIGKILL, f"the broker ended with {status}:\n{child.tail()}"
            self.kills_in_a_call += 1
        except subprocess.TimeoutExpired:
            self.broker.control["die_in"] = 0
        self.broker.control["die_where"] = 0
        self.down()
        self.start()

    def kill_while_starting(self, calls: int | None = None) -> None:
        """SIGKILL while it recovers: after a random time, or inside a disk call; several times, then a full start."""
        self.down()
        for _ in range(self.rng.randint(1, 3)):
            if calls is not None:
                self.broker.control["die_where"] = 0
                self.broker.control["die_in"] = self.rng.randint(1, calls)
            child = self.broker.spawn()
            if calls is None:
                let_pass(self.rng.uniform(0.2, 1.5))
            else:
                try:
                    child.process.wait(self.rng.uniform(1.0, 3.0))
                except subprocess.TimeoutExpired:
                    pass
            assert child.running() or child.process.returncode == -signal.SIGKILL, child.tail()
            self.broker.control["die_in"] = 0
            child.kill()
            self.kills += 1
            self.kills_while_starting += 1
        self.start()

    def kill_while_stopping(self) -> None:
        """SIGTERM, and SIGKILL while it ends (or when it has), and a start at once."""
        self.broker.child.process.send_signal(signal.SIGTERM)
        let_pass(self.rng.uniform(0, 0.3))
        self.down()
        self.start()

    def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            assert self.broker.child.running(), f"the broker ended by itself:\n{self.broker.child.tail()}"
            self.keep_segments()
            let_pass(min(left, 0.1))

    def keep_segments(self) -> None:
        """Link what there is of the CommitLog to a place where it stays."""
        if self.keep is None:
            return
        kept = self.keep / "commitlog"
        kept.mkdir(parents=True, exist_ok=True)
        for path in (self.broker.store / "commitlog").glob("[0-9]" * 20):
            link = kept / path.name
            try:
                if link.exists() and link.stat().st_ino != path.stat().st_ino:
                    link.unlink()  # it was behind the end, and was made anew
                if not link.exists():
                    link.hardlink_to(path)
            except FileNotFoundError:
                pass

    def storm(self, kills: int, up_seconds: tuple[float, float] = (0.2, 4.0), inject: float = 0.5) -> None:
        """So many kills of all kinds; ``inject`` is the share of those inside a disk call."""
        rng, until = self.rng, self.kills + kills
        while self.kills < until:
            draw = rng.random()
            if draw < 0.2:
                self.kill_while_starting(rng.choice((5, 60, 300)) if rng.random() < inject else None)
            elif draw < 0.2 + 0.7 * inject:
                self._watch(rng.uniform(0, up_seconds[1] / 2))
                where = rng.choice((0, 1, 2))
                self.kill_in_a_call(rng.choice((rng.randint(1, 30), rng.randint(1, 100 if where else 1_000))), where)
            elif draw < 0.93:
                self.kill_after(rng.uniform(*up_seconds))
            else:
                self._watch(rng.uniform(*up_seconds))
                self.kill_while_stopping()

    # ------------------------------------------------------------------------------------------ the end

    def settle(self, seconds: float = 60, never: bool = False) -> int:
        """Wait until nothing is pending, and the levels have had their time; what is still pending.

        With ``never``, messages due in some centuries stay: it waits until nothing has changed for a while.
        """
        until = time.monotonic() + seconds
        quiet = LEVEL_SECONDS if never else QUIET_SECONDS
        before, since = ("", ""), 0.0
        while (now := time.monotonic()) < until:
            self.keep_segments()
            info = self.broker.info()
            state = (info["commitLogMaxOffset"], info["timewheelPending"])
            if state != before or (state[1] != "0" and not never):
                before, since = state, now
            elif now - since > quiet and now - self._load_end > self._level_seconds:
                return int(state[1])
            let_pass(0.2)
        raise AssertionError(f"still pending after {seconds} s: {self.broker.info()}")

    def judge(self, *, all_due: bool = True) -> Verdict:
        """Compare the ledger with the CommitLog."""
        return judge(self.keep or self.broker.store, self.ledger, all_due=all_due)


def check_store(broker: OurBroker) -> tuple[int, str]:
    """Run ``timewheel check`` on a broker's store: exit status and output."""
    sets = [word for key, value in broker.settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "broker.cli", "check", str(broker.store), *sets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


def main(arguments: list[str] | None = None) -> int:
    """Storm from the command line; exit status 1 when anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fault_storm")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--flush", default="ASYNC_FLUSH")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--inject", type=float, default=0.5)
    parser.add_argument("--up", type=float, default=4.0, help="longest time up")
    parser.add_argument("--check-every", type=int, default=10, help="kills between two runs of timewheel check")
    parser.add_argument("--load", action="append", default=[], help="option=value of tests.support.fault_load")
    parser.add_argument("--keep", action="store_true", help="judge by hard links, for runs in which segments expire")
    parser.add_argument("--vary", action="store_true", help="another flush mode and segment size at each start")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(arguments)
    settings = dict(text.split("=", 1) for text in options.set)
    load: dict[str, object] = {"rate": options.rate}
    load |= dict(text.split("=", 1) for text in options.load)
    with Storm(
        options.folder, seed=options.seed, flush=options.flush, settings=settings, load_options=load, keep=options.keep
    ) as storm:
        storm.vary = options.vary
        storm.start()
        storm.begin_load()
        while storm.kills < options.kills:
            storm.storm(min(options.check_every, options.kills - storm.kills), (0.2, options.up), options.inject)
            storm.down()
            status, text = check_store(storm.broker)
            print(f"{storm.kills} kills; check: {text.strip()}", flush=True)
            assert status == 0, "the check found something"
            storm.start()
        storm.end_load()
        pending = storm.settle(300, never="never" in load)
        print("last info", {k: v for k, v in storm.broker.info().items() if k.startswith("timewheel")})
        assert storm.broker.stop() == 0
        status, text = check_store(storm.broker)
        verdict = storm.judge()
        if not verdict.never_acknowledged <= pending <= verdict.never_sent:
            verdict.add("pending", "", f"{pending}, not {verdict.never_acknowledged} to {verdict.never_sent}")
        starts = sorted(storm.start_ms)
        print(
            f"sent {storm.sent}; {storm.kills} kills ({storm.kills_while_starting} while starting, "
            f"{storm.kills_in_a_call} inside a disk call); starts ms p50 {starts[len(starts) // 2]} max {starts[-1]}"
        )
        print(f"check: {text.strip()}")
        print(verdict)
        return 1 if verdict.wrong or status else 0


if __name__ == "__main__":
    sys.exit(main())
