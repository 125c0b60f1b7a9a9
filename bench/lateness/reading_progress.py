"""How far a reading is: a line that is written over on a terminal, a line now and then in a log.

>>> said = []
>>> progress = ReadingProgress(2_000_000, said.append, lambda: 10.0)
>>> progress.add(500_000, now_s=12.0)
>>> said
['0.5 of 2.0 MB, 25 %, 0.2 MB/s, 6 s left']
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["ReadingProgress", "progress_for", "watched"]

_EVERY_S = 5.0
_TERMINAL_EVERY_S = 0.2
_LOOK_S = 0.2


class ReadingProgress:
    """Counts bytes of logs that were read, and says so at most every ``every_s`` seconds."""

    def __init__(
        self,
        whole_bytes: int,
        tell: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
        every_s: float = 0.0,
    ) -> None:
        self._whole = whole_bytes
        self._tell = tell
        self._clock_s = clock_s
        self._began_s = self._told_s = clock_s()
        self._every_s = every_s
        self._done = 0

    def add(self, count: int, now_s: float | None = None) -> None:
        """So many bytes more have been read."""
        self._done = min(self._done + count, self._whole)
        now_s = self._clock_s() if now_s is None else now_s
        if now_s - self._told_s < self._every_s or not self._whole:
            return
        self._told_s = now_s
        rate = self._done / max(now_s - self._began_s, 1e-6)
        left_s = (self._whole - self._done) / rate if rate else 0.0
        self._tell(
            f"{self._done / 1e6:,.1f} of {self._whole / 1e6:,.1f} MB, {self._done * 100 // self._whole} %, "
            f"{rate / 1e6:,.1f} MB/s, {left_s:,.0f} s left"
        )

    def reach(self, part: int, whole: int, now_s: float | None = None) -> None:
        """``part`` of ``whole`` equal shares of the logs have been read."""
        self.add(max(0, self._whole * part // max(whole, 1) - self._done), now_s)

    def after(self, words: str) -> None:
        """Say what is done when everything has been read, as often as how far the reading was."""
        now_s = self._clock_s()
        if now_s - self._told_s >= self._every_s:
            self._told_s = now_s
            self._tell(words)


def progress_for(whole_bytes: int, quiet: bool) -> ReadingProgress:
    """One for this process's standard error."""
    if quiet:
        return ReadingProgress(whole_bytes, lambda _: None, every_s=float("inf"))
    if sys.stderr.isatty():
        return ReadingProgress(whole_bytes, _over, every_s=_TERMINAL_EVERY_S)
    return ReadingProgress(whole_bytes, lambda text: click.echo(text, err=True), every_s=_EVERY_S)


def _over(text: str) -> None:
    click.echo(f"\r{text:<78}\r", nl=False, err=True)


@contextmanager
def watched(tracker: Any, progress: ReadingProgress) -> Iterator[None]:
    """Say how far Spark is, from its ``statusTracker``: its first stage reads the logs in shares of one size."""
    done = threading.Event()

    def watch() -> None:
        reads: int | None = None
        while not done.wait(_LOOK_S):
            try:
                stages = sorted(tracker.getActiveStageIds())
                infos = {number: tracker.getStageInfo(number) for number in stages}
            except Exception:  # Java is gone: whoever waits for the result says so
                return
            for number, info in infos.items():
                if info is None or not info.numTasks:
                    continue
                reads = number if reads is None else reads
                if number == reads:
                    progress.reach(info.numCompletedTasks, info.numTasks)
                elif reads not in infos:
                    progress.after(f"read; adding up: {info.numCompletedTasks} of {info.numTasks} tasks")

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
