"""Every table of the broker has a bound: attributes that are tables, held against `broker.bounds`, and the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.bounds import Bound, name_server_bounds, server_bounds
from broker.config.config_keys import USED_KEYS
from broker.naming.namesrv import NameServer
from broker.net.server import Server
from tests.broker.core_rig import Rig

ROOT = Path(__file__).parents[2]
TABLES = {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter", "SortedDict", "SortedList"}

FIXED = {
    # what the program, its configuration or an administrator's file has
    "broker:Broker._timers": "four of them",
    "access.acl_file:_Builder.root": "a configuration file",
    "access.acl_file:_Builder._keys": "a configuration file, and a depth that is bounded",
    "access.acl_file:_Builder._open": "a configuration file, and a depth that is bounded",
    "config.broker_config:BrokerConfig.plugins": "a configuration file",
    "config.broker_config:BrokerConfig.no_effect": "a configuration file",
    "config.broker_config:BrokerConfig.unknown": "a configuration file",
    "config.broker_config:BrokerConfig.values": "a configuration file, and keys that are known",
    "config.broker_config:BrokerConfig.warnings": "a configuration file",
    "core:BrokerCore._endings": "parts of the program",
    "door.peers:Peers._known": "shards",
    "door.whole:Whole._handlers": "routes of the program",
    "shards.front:Front.places": "shards",
    "core:BrokerCore._opened": "plug-ins",
    "core:BrokerCore.config_listeners": "parts of the program",
    "net.dispatcher:Dispatcher._handlers": "request codes that are served",
    "tables.groups:SubscriptionGroups.forbidden": "read from a file, never added to",
    "tables.groups:SubscriptionGroup.fields": "one value for each field of a group; an administrator's",
    "config.logs:PlaceLimit._places": "places in the program that log",
    "transactions.transaction_processor:TransactionProcessor.counts": "three outcomes",
    "naming.registration:Registration._changed": "name servers of the configuration",
    "naming.registration:Registration._identity": "four fields",
    "naming.registration:Registration._tasks": "name servers of the configuration",
    "naming.registration:Registration.status": "name servers of the configuration",
    "net.requester:Requester._channels": "name servers of the configuration",
    "net.requester:Requester._connecting": "name servers of the configuration",
    "net.server:Server._listeners": "three ports",
    "net.connection:Sockets.closed_listeners": "parts of the program",
    "tables.topics:Topics.listeners": "parts of the program",
    "turns.replies:Replies.reply_ext": "two fields",
    # shards: at most 64 of them
    **{
        f"shards.{name}": "one for each shard"
        for name in (
            *("changes:Change.waiting", "draining:Draining._empty", "draining:Draining._read_only"),
            *("front:Front._lasting", "front:Front._links", "front:Front._serving", "front:Front.states"),
            *("keeper:ShardKeeper._kept", "layout:Layout.members", "layout:Layout.out"),
            "supervisor:Supervisor._processes",
            *("supervisor:Supervisor.indexes", "supervisor:Supervisor.pending", "supervisor:Supervisor.ports"),
        )
    },
    "shards.changes:SharedChanges.entries": "CHANGES_MAX of them, and CHANGES_MAX_BYTES",
    "shards.front:Front.settings": "keys that are known",
    "shards.link:ShardLink._making": "requests that wait for a table: replyThreadPoolQueueCapacity",
    "shards.processes:ShardProcess.last_lines": "five lines",
    "shards.start:Start.options": "the command line",
    "shards.start:Start.settings": "the command line",
    "naming.topic_queues:AskedRoutes._known": "10,000 topics, beyond which all are forgotten",
    # what is bounded by another table or by its own making
    "net.channel:MemoryChannel.sent": "has no connection: for tests, and the broker's own decisions",
    "pop.answers:Answers._waiting": "1 MiB of replies, then they are written for and sent",
    "pop.pop_queues:PopQueues._turns": "10,000 groups and topics, then counting begins anew",
    "pop.under_way:Pop.bodies": "one reply: 32 messages",
    "pop.under_way:Pop.counts": "one reply: 32 messages, and its queues",
    "pop.under_way:Pop.offsets": "one reply: at most 32 queues give something",
    "pop.under_way:Pop.starts": "one reply: at most 32 queues give something",
    "pop.retry_topics:RetryTopics._backwards": "the names of topics",
    "pop_service:PopService._moved_queues": "the queues that are popped",
    "pop.reviver:Reviver._missing": "1,000 topics of retries that cannot be made, then they are asked for anew",
    "figures.stats:Rates._samples": "a deque with a maxlen",
    "tables.topic_config:TopicConfig.attributes": "three names that are known",
    "figures.traffic:Traffic._ends": "the store's queues: those of the topics",
    "tracing.tracer:Tracer._threads": "two threads",
    "door.history:LatenessHistory._before": "classes of a histogram",
    "door.history:LatenessHistory._cells": "a deque with a maxlen",
    "metrics.exporter:Exporter.labels": "four, and those of the configuration",
    "metrics.sends:SendCounts.rows": "topics up to a fixed number, the rest under one name",
}
"""Attributes that no peer can grow, each with the reason."""


def _is_table(value: ast.expr | None, annotation: ast.expr | None) -> bool:
    if annotation is not None:
        root = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        if isinstance(root, ast.Name) and root.id in TABLES:
            return True
    if isinstance(value, ast.Call):
        made = value.func.value if isinstance(value.func, ast.Attribute) else value.func  # dict.fromkeys
        return isinstance(made, ast.Name) and made.id in TABLES | {"sorted"}
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr | None]]:
    """Each target of an assignment, with the value and the annotation."""
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value, node.annotation
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from ((one, value, None) for one, value in zip(target.elts, node.value.elts, strict=False))
            else:
                yield target, node.value, None


def tables_of(source: str, module: str) -> set[str]:
    """Find the attributes of a module's classes that are tables."""
    found = set()
    for cls in ast.walk(ast.parse(source)):
        if not isinstance(cls, ast.ClassDef):
            continue
        for node in ast.walk(cls):
            for target, value, annotation in _assigned(node):
                own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                if own and target.value.id == "self" and _is_table(value, annotation):  # type: ignore[union-attr]
                    found.add(f"{module}:{cls.name}.{target.attr}")  # type: ignore[union-attr]
    return found


def all_tables() -> set[str]:
    found = set()
    for path in sorted((ROOT / "broker").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "broker").with_suffix("").parts)
        if not module.startswith("cli."):
            found |= tables_of(path.read_text(), module)
    return found


@pytest.fixture(scope="module")
def bounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bound]]:
    rig = Rig(tmp_path_factory.mktemp("store"))
    yield [*rig.core.bounds, *server_bounds(Server()), *name_server_bounds(NameServer())]
    rig.close()


def test_every_table_has_a_bound_or_a_reason(bounds: list[Bound]) -> None:
    bounded = {table for bound in bounds for table in bound.tables}
    found = all_tables()
    assert bounded & FIXED.keys() == set()
    assert found - bounded - FIXED.keys() == set(), (
        "tables without a bound: add each to a Bound of broker/bounds.py, or, if no peer can grow it, to FIXED"
    )
    assert bounded - found == set(), "bounds of tables that are not there"
    assert FIXED.keys() - found == set(), "reasons for tables that are not there"


@pytest.mark.parametrize(
    "line",
    [
        "self._seen: dict[str, int] = {}",
        "self._seen = set()",
        "self._other, self._seen = 0, []",
        "self._seen: deque[int] = make()",
        "self._seen = {name: 0 for name in names}",
        "self._seen = dict.fromkeys(names)",
    ],
)
def test_a_new_table_is_found(line: str) -> None:
    assert tables_of(f"class New:\n    def __init__(self):\n        {line}\n", "new") == {"new:New._seen"}


def test_every_bound_has_a_figure_below_it_and_a_row_on_the_page(bounds: list[Bound]) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = dict(re.findall(r"^\| `bound(\w+)` \|(.*)\|$", text, re.MULTILINE))
    assert rows.keys() == {bound.name for bound in bounds}
    for bound in bounds:
        assert 0 <= bound.now() <= bound.most(), bound.name
        assert (f"`{bound.key}`" if bound.key else "fixed") in rows[bound.name], bound.name
        if bound.key:
            assert bound.most() == int(USED_KEYS[bound.key].default), bound.name
        elif bound.name != "Connections":
            assert f"{bound.most():,}" in rows[bound.name], bound.name


def test_no_cache_is_without_a_bound() -> None:
    for package in ("broker", "broker_plugin", "remoting", "store", "timewheel"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            assert not re.search(
                r"@(functools\.)?cache\b|@(functools\.)?lru_cache\s*$|maxsize=None", text, re.MULTILINE
            ), path
