"""``python -m bench.running.named …``: runs `timewheel …` and sets the names of its threads in the operating system.

Python does not pass the names of threads on. Tools that look at a process from outside (``perf``, ``top -H``, /proc)
see the name of the command for each thread. For the first `SECONDS` a thread of this file sets the names in /proc.
"""

from __future__ import annotations

import runpy
import threading
import time
from pathlib import Path

__all__ = ["SECONDS", "name_threads"]

SECONDS = 10.0
_EVERY_S = 0.25
_MAIN = "loop"


def name_threads() -> None:
    """Set the names of all present threads. The main thread is `loop`."""
    for thread in threading.enumerate():
        name = _MAIN if thread is threading.main_thread() else thread.name
        try:
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(name[:15])
        except OSError:
            pass  # it has ended


def _for_a_while() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        name_threads()
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    threading.Thread(target=_for_a_while, name="namer", daemon=True).start()
    runpy.run_module("broker.cli", run_name="__main__", alter_sys=True)
