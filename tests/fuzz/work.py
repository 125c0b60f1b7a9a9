"""What the processes of a long run do: one block after the other."""

from __future__ import annotations

import logging
import resource

from tests.fuzz.engine import Tally, run_block
from tests.fuzz.targets import TARGETS

__all__ = ["Job", "begin_process", "run_job"]

MEMORY_MAX = 4 << 30

Job = tuple[str, int, int, int]
"""Target, seed, block, inputs."""


def begin_process() -> None:
    """Say nothing, and take no more than `MEMORY_MAX`: what runs away ends as a MemoryError."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def run_job(job: Job) -> Tally:
    """Run one block."""
    name, seed, block, count = job
    return run_block(TARGETS[name], seed, block, count)
