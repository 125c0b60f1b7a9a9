"""Free TCP ports, as the benchmarks have them (`bench.peers.ports`)."""

from __future__ import annotations

from bench.peers.ports import IN_USE, free_port, free_ports_around, wait_open

__all__ = ["IN_USE", "free_port", "free_ports_around", "wait_open"]
