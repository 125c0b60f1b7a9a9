"""RocketMQ 5's Go, Node and Python clients through Apache's proxy, all unmodified, on our broker: a ledger for each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.proxy import Proxy, proxy_jars
from tests.support.proxy_clients import LANGUAGES, language_command
from tests.support.proxy_ledger import COUNT, Lines, lines_of, prepare, problems
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop]

SECONDS = 120
ONCE = ("normal/push", "normal/simple", "delay/simple", "fifo/push", "transaction/simple")
KINDS = tuple(f"{kind}/{COUNT}" for kind in ONCE)
MORE = ("again/simple/200",)
RECALL = ("recall/simple/100",)
OF = {
    "go": (*(kind for kind in KINDS if "push" not in kind), f"fifo/simple/{COUNT}", *MORE),  # it has no push consumer
    "node": (*KINDS, *MORE, *RECALL),
    "python": (*KINDS, *MORE, *RECALL),
}


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
    with Wire(broker.address) as wire:
        jobs = prepare(wire, OF[language], typed=False, prefix=f"{language}-")
    done = subprocess.run(
        [*command, proxy.endpoints, str(SECONDS), *jobs],
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_message_comes_once(world: tuple[OurBroker, Proxy, Path], language: str) -> None:
    found = _run(world, language)
    wrong = {job: said for job, lines in found.items() if (said := list(problems(job, lines)))}
    log = (world[2] / f"{language}.log").read_text()
    assert not wrong, "\n".join([*(f"{job}: {said}" for job, said in wrong.items()), *_said(log)])
