"""RocketMQ 5's Go, Node and Python clients through Apache's proxy, all unmodified, on our broker: a ledger for each."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.proxy import Proxy, proxy_jars
from tests.support.proxy_clients import LANGUAGES, language_command
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop]

SECONDS = 120
KINDS = ("normal/push/1000", "normal/simple/1000", "delay/simple/1000", "fifo/push/1000", "transaction/simple/1000")
MORE = ("again/simple/200",)
RECALL = ("recall/simple/100",)
OF = {
    "go": (*(kind for kind in KINDS if "push" not in kind), "fifo/simple/1000", *MORE),  # it has no push consumer
    "node": (*KINDS, *MORE, *RECALL),
    "python": (*KINDS, *MORE, *RECALL),
}
Lines = dict[str, list[list[str]]]


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
    jobs = []
    with Wire(broker.address) as wire:
        for job in OF[language]:
            kind, consumer, _ = job.split("/")
            topic, group = f"T-{language}-{kind}-{consumer}", f"G-{language}-{kind}-{consumer}"
            wire.create_topic(topic)
            config = {"groupName": group, "consumeMessageOrderly": kind == "fifo"}
            wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(config))
            jobs.append(f"{job}/{topic}/{group}")
    done = subprocess.run(
        [*command, proxy.endpoints, str(SECONDS), *jobs],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )
    (folder / f"{language}.log").write_text(done.stdout + done.stderr)
    found: Lines = {job: [] for job in jobs}
    for line in done.stdout.splitlines():
        words = line.split(" ")
        if words[0] in found:
            found[words[0]].append(words[1:])
    return found


def _problems(job: str, lines: list[list[str]]) -> Iterator[str]:
    """What is wrong with the ledger of one kind."""
    kind, _, number, *_ = job.split("/")
    count = int(number)
    sent = {"transaction": count * 9 // 10, "recall": count // 2}.get(kind, count)
    due = {body: int(due_ms) for word, body, due_ms, _ in lines if word == "sent"}
    got = [(body, int(at_ms), int(attempt)) for word, body, at_ms, attempt in lines if word == "got"]
    yield from (f"failed: {words}" for words in lines if words[0] == "failed")
    if len(due) != sent:
        yield f"{len(due)} sent, not {sent}"
    times = Counter(body for body, _, _ in got)
    wanted = 2 if kind == "again" else 1
    if times != dict.fromkeys(due, wanted):
        yield f"{len(due.keys() - times.keys())} lost, {len(times.keys() - due.keys())} that were not to come"
        yield f"came so often: {Counter(times.values())}, {wanted} is right"
    early = [body for body, at_ms, _ in got if at_ms < due.get(body, 0)]
    if early:
        yield f"{len(early)} early"
    if kind == "fifo":
        for number_of_group in range(7):
            own = [int(body) for body, _, _ in got if int(body) % 7 == number_of_group]
            if own != sorted(own):
                yield f"group {number_of_group} is out of order"


def _said(log: str) -> list[str]:
    """The last lines of a client's log that are not its ledger."""
    return [line for line in log.splitlines() if line.split(" ")[0].count("/") < 3][-40:]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_message_comes_once(world: tuple[OurBroker, Proxy, Path], language: str) -> None:
    found = _run(world, language)
    wrong = {job: problems for job, lines in found.items() if (problems := list(_problems(job, lines)))}
    log = (world[2] / f"{language}.log").read_text()
    assert not wrong, "\n".join([*(f"{job}: {problems}" for job, problems in wrong.items()), *_said(log)])
