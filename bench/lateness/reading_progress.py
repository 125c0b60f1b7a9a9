"""Shows how far a reading is: in one line on a terminal, elsewhere in a line at once and one every five seconds.

A thread of its own writes the lines, so they also appear while a source sends nothing.

>>> said = []
>>> progress = ReadingProgress(said.append, every_s=60.0)
>>> with progress.telling(2_000_000):
...     progress.reach(1, 4)
>>> said
['0.0 of 2.0 MB, 0 %']
>>> progress.words(now_s=progress.began_s + 2.0)
'0.5 of 2.0 MB, 25 %, 0.2 MB/s, 6 s left'
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["ReadingProgress", "covering", "progress_for", "watched"]

_EVERY_S = 5.0
_TERMINAL_EVERY_S = 0.2
_LOOK_S = 0.2
_WIDTH = 78
"""Characters of a progress line on a terminal."""


class ReadingProgress:
    """Counts the bytes of logs that were read; within `telling`, says so every ``every_s`` seconds."""

    def __init__(self, tell: Callable[[str], None], every_s: float = _EVERY_S, over: bool = False) -> None:
        """Call ``tell`` with each line; ``over``: a line replaces the one before, so an empty one comes at the end."""
        self._tell = tell
        self._every_s = every_s
        self._over = over
        self._whole = self._done = 0
        self._after = ""
        self._look: Callable[[], int] = lambda: 0
        self.began_s = 0.0

    def reach(self, part: int, whole: int) -> None:
        """Set the number of bytes that have been read to ``part`` of ``whole`` equal shares of the logs."""
        self._done = self._whole * part // max(whole, 1)

    def after(self, words: str) -> None:
        """Set the words for the work after the reading."""
        self._after = words

    @contextmanager
    def counting(self, look: Callable[[], int]) -> Iterator[None]:
        """Within the body, ``look`` gives the number of bytes that have been read."""
        self._look = look
        try:
            yield
        finally:
            self._done = look()
            self._look = lambda: 0

    @property
    def done_bytes(self) -> int:
        """The number of bytes that have been read."""
        return max(self._done, self._look())

    def words(self, now_s: float | None = None) -> str:
        """How far the reading is; ``now_s`` is a time of `time.monotonic`, by default the present."""
        if self._after:
            return self._after
        done = min(self.done_bytes, self._whole)
        if done == self._whole:
            return "read; adding up"
        text = f"{done / 1e6:,.1f} of {self._whole / 1e6:,.1f} MB, {done * 100 // self._whole} %"
        if not done:
            return text
        rate = done / max((time.monotonic() if now_s is None else now_s) - self.began_s, 1e-6)
        return f"{text}, {rate / 1e6:,.1f} MB/s, {(self._whole - done) / rate:,.0f} s left"

    @contextmanager
    def telling(self, whole_bytes: int, at_once: bool = True) -> Iterator[None]:
        """Within the body, say how far a reading of ``whole_bytes`` is; ``at_once``: also when it begins."""
        self._whole, self._done, self._after = whole_bytes, 0, ""
        self.began_s = time.monotonic()
        if not whole_bytes or self._every_s == float("inf"):
            yield
            return

        def tell(done: threading.Event) -> None:
            while not done.wait(self._every_s):
                self._tell(self.words())

        if at_once:
            self._tell(self.words())
        try:
            with _beside(tell, "progress"):
                yield
        finally:
            if self._over:
                self._tell("")


def progress_for(quiet: bool) -> ReadingProgress:
    """A progress on this process's standard error; a silent one if that is closed, as in a timer job."""
    if quiet or sys.stderr is None:
        return ReadingProgress(lambda _: None, float("inf"))
    if sys.stderr.isatty():
        return ReadingProgress(_over, _TERMINAL_EVERY_S, over=True)
    return ReadingProgress(lambda text: click.echo(text, err=True))


def covering(text: str) -> str:
    """A line for standard error that leaves nothing of a progress line on a terminal."""
    return text.ljust(_WIDTH) if sys.stderr is not None and sys.stderr.isatty() else text


def _over(text: str) -> None:
    click.echo(f"\r{text:<{_WIDTH}}\r", nl=False, err=True)


@contextmanager
def watched(tracker: Any, progress: ReadingProgress) -> Iterator[None]:
    """Within the body, say how far Spark is, by its ``statusTracker``: the first stage reads shares of equal size."""

    def watch(done: threading.Event) -> None:
        reads: int | None = None
        while not done.wait(_LOOK_S):
            try:
                stages = sorted(tracker.getActiveStageIds())
                infos = {number: tracker.getStageInfo(number) for number in stages}
            except Exception:  # Java is gone; the thread that waits for the result raises
                return
            for number, info in infos.items():
                if info is None or not info.numTasks:
                    continue
                reads = number if reads is None else reads
                if number == reads:
                    progress.reach(info.numCompletedTasks, info.numTasks)
                elif reads not in infos:
                    progress.after(f"read; adding up: {info.numCompletedTasks} of {info.numTasks} tasks")

    with _beside(watch, "stages"):
        yield


@contextmanager
def _beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run ``work`` in a thread until the body ends, which sets the event."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
