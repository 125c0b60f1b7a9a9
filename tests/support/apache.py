"""Apache RocketMQ, as the benchmarks have them (`bench.peers.apache`)."""

from __future__ import annotations

from bench.peers.apache import OPENS, VERSION, ApacheBroker, ApacheNameServer, apache_jars

__all__ = ["OPENS", "VERSION", "ApacheBroker", "ApacheNameServer", "apache_jars"]
