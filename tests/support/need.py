"""Skip with one line of reason where something outside Python is missing; under CI, fail instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.cache import FetchError, MissingToolError

__all__ = ["in_ci", "need"]

Result = TypeVar("Result")


def in_ci() -> bool:
    """Say whether nothing may be skipped."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def need(what: Callable[[], Result]) -> Result:
    """Call something that fetches or builds; skip the test (in CI: fail it) if a tool or a package is not to be had."""
    try:
        return what()
    except (MissingToolError, FetchError) as error:
        if in_ci():
            pytest.fail(f"nothing may be skipped in CI: {error}", pytrace=False)
        pytest.skip(str(error))
