"""One broker of ours and one of Apache's for all tests of this folder, and the processes beside it that tests share.

A process of Apache's, and each JVM of a client, costs seconds of processor time at its start. So the tests of this
folder run one after the other on the same broker, each with topics and groups of its own, and borrow clients that
live as long as the broker (`tests.interop.guests`). What a test kills, it starts for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.guests import Hosts
from tests.interop.peers import Peer, start_peer
from tests.support.admin import MqAdmin, admin_classes
from tests.support.clients import Client
from tests.support.need import need

SETTINGS = {"traceTopicEnable": "true", "recallMessageEnable": "true", "enablePropertyFilter": "true"}


@pytest.fixture(
    scope="package",
    params=[pytest.param("ours", marks=pytest.mark.process), pytest.param("apache", marks=pytest.mark.apache)],
)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A broker of ours, then one of Apache's."""
    with start_peer(request.param, tmp_path_factory.mktemp(request.param), SETTINGS) as made:
        yield made


@pytest.fixture(scope="package")
def admin(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    """Apache's mqadmin for this broker."""
    need(admin_classes)
    made = MqAdmin(peer.namesrv, tmp_path_factory.mktemp("admin"))
    yield made
    made.stop()


@pytest.fixture(scope="package")
def hosts(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The clients of this broker that tests share; they end before it."""
    made = Hosts(peer.namesrv, tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture
def borrow(hosts: Hosts) -> Iterator[Callable[..., Client]]:
    """Borrow stock clients that run already. Each ``number`` is a process of its own."""
    with hosts.lent() as lent:
        yield lent
