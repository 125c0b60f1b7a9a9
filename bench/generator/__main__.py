"""``python -m bench.generator``: one `Load` as JSON on standard input, its `LoadResult` on standard output."""

from __future__ import annotations

import dataclasses
import json
import sys

from bench.generator.load import Load
from bench.generator.sender import Sender

if __name__ == "__main__":
    result = Sender(Load.of(json.loads(sys.stdin.readline()))).run()
    sys.stdout.write(json.dumps(dataclasses.asdict(result)) + "\n")
