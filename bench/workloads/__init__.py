"""The workloads, a module each. Each starts the systems itself, in turn, for each repeat."""

from __future__ import annotations

__all__: list[str] = []
