"""Whether anything is left of a process and what it started."""

from __future__ import annotations

import os

from tests.support.wait import happens

__all__ = ["group_ends"]


def group_ends(group: int, seconds: float) -> bool:
    """Wait for the last process of a group to end; whether it did."""

    def gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    return happens(gone, seconds)
