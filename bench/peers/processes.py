"""Child processes of tests and benchmarks: each with its own session and log file, and certain to end."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Child"]


# Each is kept here until it has ended: its starter may be interrupted before it keeps it itself.
_children: set[Child] = set()


@atexit.register
def _end_all() -> None:
    """Leave nothing running, also when a test run is broken off."""
    for child in list(_children):
        if child.running():
            child.kill()


if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest ends, and the clean-up runs


class Child:
    """A process with its output in a log file, in a session of its own so that its children end with it."""

    def __init__(
        self,
        command: Sequence[str | Path],
        cwd: Path,
        log: Path,
        env: dict[str, str] | None = None,
        pipes: bool = False,
    ) -> None:
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                start_new_session=True,
            )
        _children.add(self)

    def running(self) -> bool:
        """Say whether it still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the whole session, and wait."""
        if self.process.returncode is not None and Path(f"/proc/{self.process.pid}").exists():
            _children.discard(self)
            return  # it ended long ago, and its number belongs to somebody else now
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        _children.discard(self)

    def terminate(self, seconds: float = 30) -> int:
        """Send SIGTERM, wait, and return the exit status. If it does not end, send SIGKILL and raise an error."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"process {self.process.args!r} ignored SIGTERM for {seconds} s") from None

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
