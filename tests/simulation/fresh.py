"""Seeds that nobody has run before, others with each run; a finding names its seed, and the header of a run the first.

``TIMEWHEEL_FRESH_SEED`` takes the first seed instead, so that a run can be repeated.
"""

from __future__ import annotations

import os

__all__ = ["FRESH_SEED"]

FRESH_SEED = int(os.environ.get("TIMEWHEEL_FRESH_SEED") or int.from_bytes(os.urandom(5), "big"))
os.environ["TIMEWHEEL_FRESH_SEED"] = str(FRESH_SEED)  # the worker processes of a run have the same
