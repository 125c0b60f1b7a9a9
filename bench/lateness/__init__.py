"""How late was every message: the pipeline behind ``timewheel lateness``, on Spark.

`bench.lateness.results.result` is the joint between its two halves: what the computation leaves in a folder, and what
the report is drawn from. ``docs/lateness.md`` defines every word and every column.
"""

from __future__ import annotations

__all__: list[str] = []
