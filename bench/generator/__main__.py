"""``python -m bench.generator``: one `Load` as JSON on standard input, its `LoadResult` on standard output."""

from __future__ import annotations

import dataclasses
import json
import sys

from bench.generator import native
from bench.generator.load import Load, LoadResult
from bench.generator.sender import Sender


def result_of(load: Load) -> LoadResult:
    """Run a load, in C where that is possible."""
    return native.run(load) if native.can_run(load) else Sender(load).run()


if __name__ == "__main__":
    result = result_of(Load.of(json.loads(sys.stdin.readline())))
    sys.stdout.write(json.dumps(dataclasses.asdict(result)) + "\n")
