"""What is measured: one module a workload, each starting the systems itself, in turn and again."""

from __future__ import annotations

__all__: list[str] = []
