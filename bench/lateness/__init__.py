"""The pipeline behind ``timewheel lateness``: how late every delayed message was. It runs with or without Spark.

`bench.lateness.results.result` connects its two halves: the computation writes a result folder, and the report is drawn
from it. ``docs/lateness.md`` defines every word and every column.
"""

from __future__ import annotations

__all__: list[str] = []
