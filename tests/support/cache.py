"""The cache of fetched things, as the benchmarks have them (`bench.fetching.cache`)."""

from __future__ import annotations

from bench.fetching.cache import FetchError, MissingToolError, cache_root, cached, fetch_maven, need_tools, run_tool

__all__ = ["FetchError", "MissingToolError", "cache_root", "cached", "fetch_maven", "need_tools", "run_tool"]
