"""RocketMQ 5's Go, Node and Python clients through Apache's proxy, all unmodified, on our broker: a ledger for each."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import Background
from tests.support.proxy import Proxy, proxy_jars
from tests.support.proxy_clients import LANGUAGES, language_command
from tests.support.proxy_ledger import (
    BACKOFF,
    COUNT,
    NODE_BACKOFF,
    Lines,
    await_dead,
    dead_letters,
    lines_of,
    prepare,
    problems,
    wanted_dead,
)
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop]

SECONDS = 80 + COUNT // 2
DEAD_SECONDS = SECONDS - 40
KINDS = ("normal", "delay", "fifo", "transaction", "dead", "deadfifo")
SIMPLE = (*(f"{kind}/simple/{COUNT}" for kind in KINDS), f"again/simple/{max(COUNT, 200)}")
MORE = (*(f"{kind}/push/{COUNT}" for kind in KINDS), f"recall/simple/{COUNT}")
OF = {"go": SIMPLE, "node": (*SIMPLE, *MORE), "python": (*SIMPLE, *MORE)}
"""The Go client has no push consumer and cannot recall."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OurBroker, Proxy, Path]]:
    """Our broker with the proxy in front."""
    folder = tmp_path_factory.mktemp("proxy")
    need(proxy_jars)
    broker = OurBroker(folder / "broker", {"recallMessageEnable": "true"}).start()
    proxy = None
    try:
        proxy = Proxy(folder / "proxy", broker.namesrv)
        yield broker, proxy, folder
    finally:
        if proxy is not None:
            proxy.kill()
        broker.kill()


def _run(world: tuple[OurBroker, Proxy, Path], language: str) -> Lines:
    """Have one process do all kinds at once; the words of the lines of each."""
    broker, proxy, folder = world
    command = need(lambda: language_command(language))
    backoff = NODE_BACKOFF if language == "node" else BACKOFF
    with Wire(broker.address) as wire:
        jobs = prepare(wire, OF[language], typed=False, prefix=f"{language}-", backoff=backoff)
    all_dead = folder / f"{language}-all-dead"
    Background(lambda: await_dead(broker.address, jobs, all_dead, DEAD_SECONDS))
    done = subprocess.run(
        [*command, proxy.endpoints, str(SECONDS), str(all_dead), *jobs],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )
    (folder / f"{language}.log").write_text(done.stdout + done.stderr)
    return lines_of(done.stdout, jobs)


def _said(log: str) -> list[str]:
    """The last lines of a client's log that are not its ledger."""
    ledger = {"sent", "got", "changed", "rolledback", "recalled"}
    return [line for line in log.splitlines() if not ledger & set(line.split(" ")[1:2])][-40:]


def _not_dead(broker: OurBroker, jobs: Iterable[str]) -> Iterator[str]:
    """What is wrong with the dead letters of the jobs: each message that is never taken is there once."""
    with Wire(broker.address) as wire:
        for job in jobs:
            if bodies := wanted_dead(job):
                found = Counter(dead_letters(wire, job.split("/")[-1]))
                if found != Counter(bodies):
                    yield f"{job}: {len(bodies)} are never taken, the dead letters are {found}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_message_comes_as_often_as_it_should(world: tuple[OurBroker, Proxy, Path], language: str) -> None:
    found = _run(world, language)
    wrong = []
    for job, lines in found.items():
        counted = language != "python" or not job.startswith("deadfifo/push")  # it tries again by itself, and says 1
        wrong += [f"{job}: {said}" for said in problems(job, lines, counted=counted)]
    wrong += _not_dead(world[0], found)
    log = (world[2] / f"{language}.log").read_text()
    assert not wrong, "\n".join([*wrong, *_said(log)])
