"""Fixtures of the tests with stock clients: brokers, clients, the two runs of the workload, and the figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.run import DUE_FIELDS, Part, run_workload
from tests.interop.workload import SENDS
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.cache import FetchError, MissingToolError
from tests.support.clients import Client, command_of
from tests.support.figures import FIGURES
from tests.support.need import in_ci, need
from tests.support.ours import OurBroker


@dataclass
class Run:
    """The workload on one broker; ``missing`` says of each absent client why."""

    parts: dict[tuple[str, str], Part]
    missing: dict[str, str]
    port: int

    def part(self, client: str, kind: str) -> Part:
        """Return one part; the test is skipped (in CI: fails) if the client could not be had."""
        if client in self.missing:
            (pytest.fail if in_ci() else pytest.skip)(self.missing[client])
        return self.parts[client, kind]


def _available(folder: Path) -> tuple[list[str], dict[str, str]]:
    there, missing = [], {}
    for client in SENDS:
        try:
            command_of(client, folder)
            there.append(client)
        except (MissingToolError, FetchError) as error:
            missing[client] = f"{client}: {error}"
    return there, missing


@pytest.fixture(scope="session")
def our_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the whole workload on our broker."""
    folder = tmp_path_factory.mktemp("ours")
    clients, missing = _available(folder)
    broker = OurBroker(folder / "broker").start()
    try:
        parts = run_workload(
            broker.address,
            broker.namesrv,
            broker.store,
            folder,
            lambda part: DUE_FIELDS.get(part.kind.due),
            clients,
        )
        assert broker.stop() == 0, broker.child.tail()
    finally:
        broker.kill()
    return Run(parts, missing, broker.port)


def _apache_due_field(part: Part) -> str | None:
    """Name the field that delays a message on Apache, which does not know __STARTDELIVERTIME.

    Java 5.5.0 refuses a batch of messages with its own timer property, so there it stays __STARTDELIVERTIME.
    """
    if part.client == "java-5.5.0" and part.kind.batch and part.kind.due == "start":
        return DUE_FIELDS["start"]
    return {**DUE_FIELDS, "start": DUE_FIELDS["deliver"]}.get(part.kind.due)


def _run_on_apache() -> Run:
    apache_jars()
    with tempfile.TemporaryDirectory(prefix="apache-run-") as name:
        folder = Path(name)
        clients, missing = _available(folder)
        names = ApacheNameServer(folder / "namesrv")
        broker = ApacheBroker(folder / "broker", names.address)
        try:
            broker.start()
            parts = run_workload(broker.address, names.address, broker.store, folder, _apache_due_field, clients)
        finally:
            broker.kill()
            names.stop()
    return Run(parts, missing, broker.port)


@pytest.fixture(scope="session")
def apache_run() -> Run:
    """Run the whole workload on Apache's broker: by itself, as its clients wait no longer than some seconds."""
    return need(_run_on_apache)


@pytest.fixture
def figures() -> list[str]:
    """A list of lines that are shown at the end of the run."""
    return FIGURES


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., OurBroker]]:
    """Start brokers of ours that end with the test."""
    brokers: list[OurBroker] = []

    def start(name: str = "broker", **options: object) -> OurBroker:
        broker = OurBroker(tmp_path / name, **options)  # type: ignore[arg-type]
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.kill()


@pytest.fixture
def start_client(tmp_path: Path) -> Iterator[Callable[[str, str], Client]]:
    """Start stock clients that end with the test."""
    clients: list[Client] = []

    def start(name: str, namesrv: str) -> Client:
        need(lambda: command_of(name, tmp_path))
        client = Client(name, namesrv, tmp_path / f"{name}-{len(clients)}")
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.kill()
