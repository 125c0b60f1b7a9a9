"""Plain requests, as the benchmarks have them (`bench.peers.wire`)."""

from __future__ import annotations

from bench.peers.wire import Wire, WireError

__all__ = ["Wire", "WireError"]
