"""Examples in docstrings run, in all packages."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.house.test_architecture import ALL, name_of

EXTRAS = {"fsspec", "opentelemetry", "pyarrow", "pyspark", "s3fs"}
WITH_EXAMPLES = [path for path in ALL if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_examples_show_what_happens(path: Path) -> None:
    parts = list(path.with_suffix("").parts[-len(Path(name_of(path)).parts) :])
    try:
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except ModuleNotFoundError as error:  # of an extra that `--quick` does not install
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"{error.name} is not installed")
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
