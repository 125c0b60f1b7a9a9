"""Sizes: a source file has at most 400 lines, a function 60. What is over has a ceiling here, which only goes down."""

from __future__ import annotations

import ast

from tests.house.test_architecture import ALL, name_of, nodes_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

FILES_STILL_OVER = {
    "remoting/command.py": 488,
    "remoting/layout.py": 580,
    "store/derived/consume_queue.py": 500,
    "store/derived/index.py": 493,
    "store/disk/files.py": 632,
    "store/log/commit_log.py": 551,
    "store/message_store.py": 651,
    "store/put/plugin_api.py": 433,
    "store/spill/journal/segment.py": 454,
    "store/spill/rows/format.py": 453,
    "store/spill/runs/run.py": 562,
    "store/spill/spill_store.py": 476,
    "store/spill/state/spill_state.py": 439,
    "store/spill/upkeep/repair.py": 457,
    "broker/core.py": 420,
    "broker/naming/namesrv.py": 530,
    "broker/naming/routes.py": 482,
    "broker/net/clients.py": 429,
    "broker/net/dispatcher.py": 438,
    "broker/net/server.py": 420,
    "broker/processors/admin.py": 428,
    "broker/processors/progress.py": 424,
    "broker/pulling/pull.py": 467,
    "broker/sending/send.py": 550,
    "broker/tables/late_tables.py": 427,
    "broker/tables/topics.py": 561,
    "broker/turns/turn.py": 598,
}

FUNCTIONS_STILL_OVER = {
    "remoting/messages/stored.py:_decode_record": 61,
    "store/message_store.py:_append": 82,
    "broker/processor_set.py:__init__": 72,
    "broker/processor_set.py:all": 67,
    "bench/lateness/command.py:lateness_command": 77,
}


def over(sizes: dict[str, int], limit: int, ceilings: dict[str, int]) -> list[str]:
    """What is larger than its ceiling, or the limit; and ceilings that are needed no more."""
    return [
        *(
            f"{name} has {lines} lines, more than {ceilings.get(name, limit)}: divide it by noun"
            for name, lines in sizes.items()
            if lines > ceilings.get(name, limit)
        ),
        *(f"{name} needs no ceiling any more" for name in ceilings if sizes.get(name, 0) <= limit),
    ]


def test_files_are_short() -> None:
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in ALL}
    assert not over(sizes, FILE_LINES_MAX, FILES_STILL_OVER)


def test_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path in ALL:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{name_of(path)}:{node.name}"
                sizes[name] = max(sizes.get(name, 0), (node.end_lineno or node.lineno) - node.lineno + 1)
    assert not over(sizes, FUNCTION_LINES_MAX, FUNCTIONS_STILL_OVER)


def test_the_rule_sees_what_breaks_it() -> None:
    sizes = {"short": 10, "long": 11, "known": 20, "mended": 9}
    assert [text.split()[0] for text in over(sizes, 10, {"known": 20, "mended": 30})] == ["long", "mended"]
    assert [text.split()[0] for text in over(sizes, 10, {"known": 19, "long": 11})] == ["known"]
