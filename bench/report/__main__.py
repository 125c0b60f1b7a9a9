"""``python -m bench.report DIR``: draw the page of a result folder again."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.report import ReportError, write_report


def main() -> int:
    """Draw and print the path; 2 for wrong arguments, 1 for a folder that cannot be drawn."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m bench.report DIR   (a folder of `timewheel lateness` or `timewheel bench`)")
        return 2
    try:
        print(write_report(Path(sys.argv[1])))
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
