"""Our own broker, as the benchmarks have them (`bench.peers.ours`)."""

from __future__ import annotations

from bench.peers.ours import ROOT, OurBroker

__all__ = ["ROOT", "OurBroker"]
