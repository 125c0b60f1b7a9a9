"""One Spark session for all tests that need one: a start costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cache import need_tools
from tests.support.need import in_ci, need


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    need(lambda: need_tools("java"))
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        if in_ci():
            pytest.fail("nothing may be skipped in CI: the extra spark is not installed", pytrace=False)
        pytest.skip("the extra spark is not installed")
    from bench.lateness.engines.session import spark_session

    with spark_session("local[2]", memory="1g", partitions=2) as session:
        yield session
