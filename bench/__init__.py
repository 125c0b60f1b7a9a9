"""The view from outside: load generators, measurements and micro-benchmarks of the parts.

Nothing here is needed to run a broker. ``timewheel bench`` (`bench.cli`) starts our broker and its peers in turn
(`bench.peers`), sends and receives with processes of its own (`bench.generator`), and prints what each of its workloads
(`bench.workloads`) found. `bench.lateness` (``timewheel lateness``, with or without Spark) reads the logs of any broker
afterwards and says how late every message was; `bench.plain_lateness` does a part of that in one process. Each of the
``*_bench`` modules times one part beside a yardstick in the same process.
"""

from __future__ import annotations

__all__: list[str] = []
