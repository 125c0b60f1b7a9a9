"""RocketMQ 5's Java client through Apache's own proxy, both unmodified, on our broker and on Apache's, with ledgers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.interop.peers import start_peer
from tests.support.apache import apache_jars
from tests.support.need import need
from tests.support.parallel import Background, run_all
from tests.support.proxy import Proxy, client_command, proxy_jars
from tests.support.proxy_ledger import (
    ATTEMPTS,
    COUNT,
    await_dead,
    dead_letters,
    lines_of,
    prepare,
    problems,
    wanted_dead,
)
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop, pytest.mark.apache]

SECONDS = 220 + COUNT // 5
DEAD_SECONDS = SECONDS - 90
"""The proxy is slow on a busy machine. It is killed only when all dead letters are there, or after so long."""
OURS = tuple(f"{kind}/{COUNT}" for kind in ("normal/simple", "delay/push", "fifo/simple", "transaction/simple"))
MANY = max(COUNT, 200)
BOTH = (
    f"normal/push/{COUNT}",
    f"normal/again/{MANY}",
    f"delay/simple/{COUNT}",
    f"fifo/push/{COUNT}",
    f"transaction/push/{COUNT}",
    f"dead/push/{MANY}",
    f"dead/simple/{MANY}",
    f"deadfifo/push/{COUNT}",
    f"deadfifo/simple/{COUNT}",
    f"tag/push/{COUNT}",
    f"tag/simple/{COUNT}",
    f"sql/push/{COUNT}",
    f"sql/simple/{COUNT}",
)


class Side:
    """All jobs on one broker, behind a proxy of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.dead: dict[str, list[str]] = {}
        settings = {"enablePropertyFilter": "true"}
        with start_peer(kind, folder, settings) as peer:
            with Wire(peer.address) as wire:
                names = self.both = prepare(wire, BOTH, typed=kind == "apache")
                if kind == "ours":
                    names = names + prepare(wire, OURS, typed=False, prefix="ours-")
            proxy = Proxy(folder / "proxy", peer.namesrv)
            all_dead = folder / "all-dead"
            try:
                Background(lambda: await_dead(peer.address, names, all_dead, DEAD_SECONDS))
                self.lines = lines_of(proxy.run(folder, names, SECONDS, all_dead), names)
            finally:
                proxy.kill()
            with Wire(peer.address) as wire:  # Apache's broker has closed an idle connection by then
                for name in names:
                    if wanted_dead(name):
                        self.dead[name] = dead_letters(wire, name.split("/")[-1])
        self.problems = {name: found for name, lines in self.lines.items() if (found := list(problems(name, lines)))}


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    """Our broker and Apache's, at the same time."""
    need(proxy_jars)
    need(apache_jars)
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("ours", "apache")}
    need(lambda: client_command(folders["ours"]))
    found: dict[str, Side] = {}

    def run(kind: str) -> None:
        found[kind] = Side(kind, folders[kind])

    run_all([lambda: run("ours"), lambda: run("apache")])
    return found


def _got(side: Side, name: str) -> Counter[tuple[str, int]]:
    return Counter((body, int(attempt)) for word, body, _, attempt in side.lines[name] if word == "got")


def test_each_message_comes_as_often_as_it_should(sides: dict[str, Side]) -> None:
    ours = sides["ours"]
    assert not ours.problems, ours.problems
    for name in ours.lines:
        again, dead = "/again/" in name, name.startswith("dead")
        attempts = {attempt for _, attempt in _got(ours, name)}
        assert attempts == set(range(1, ATTEMPTS + 1 if dead else 3 if again else 2)), name


def test_a_changed_time_is_not_over_before_its_end(sides: dict[str, Side]) -> None:
    checked = 0
    for lines in sides["ours"].lines.values():
        changed = {(body, int(attempt)): int(at_ms) for word, body, at_ms, attempt in lines if word == "changed"}
        for word, body, at_ms, attempt in lines:
            since = changed.get((body, int(attempt) - 1))
            if word == "got" and since is not None:
                checked += 1
                assert int(at_ms) - since >= 400, "before the changed time was over, but for the two clock readings"
    assert checked >= 200


def test_what_is_never_acknowledged_is_once_among_the_dead_letters(sides: dict[str, Side]) -> None:
    ours = sides["ours"]
    assert len(ours.dead) == 4
    for name, bodies in ours.dead.items():
        assert Counter(bodies) == Counter(wanted_dead(name)), name


def test_our_broker_gives_what_apaches_gives(sides: dict[str, Side]) -> None:
    """The same deliveries with the same attempts; but for jobs in which Apache's broker loses or repeats."""
    ours, apache = sides["ours"], sides["apache"]
    assert len(apache.problems) < len(BOTH) // 2, apache.problems
    for name in apache.both:
        if name not in apache.problems:
            assert _got(ours, name) == _got(apache, name), name
    for name, bodies in apache.dead.items():
        if name not in apache.problems:
            assert sorted(ours.dead[name]) == sorted(bodies), name
