"""A broker of ours and one of Apache's, with the settings that each has by default, for all tests of this folder.

The two serve the same story at the same time, and what they answer is compared. Each file has topics and groups of its
own, and ends neither broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all


@dataclass(frozen=True)
class Pair:
    """Both brokers, which run."""

    ours: OurBroker
    apache: ApacheBroker


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both brokers."""
    need(apache_jars)
    folder = tmp_path_factory.mktemp("pair")
    names = ApacheNameServer(folder / "namesrv")
    made = Pair(OurBroker(folder / "ours"), ApacheBroker(folder / "apache", names.address))
    try:
        run_all([made.ours.start, made.apache.start])
        yield made
    finally:
        made.ours.kill()
        made.apache.kill()
        names.stop()
