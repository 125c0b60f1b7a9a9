"""Child processes, as the benchmarks have them (`bench.peers.processes`)."""

from __future__ import annotations

from bench.peers.processes import Child

__all__ = ["Child"]
