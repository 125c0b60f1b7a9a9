"""Whether anything is left of a process and what it started."""

from __future__ import annotations

import os
import time

__all__ = ["group_ends"]


def group_ends(group: int, seconds: float) -> bool:
    """Wait for the last process of a group to end; whether it did."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
