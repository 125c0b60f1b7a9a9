"""All targets by name."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz import config_targets, pop_targets, spill_targets, store_targets, wire_targets
from tests.fuzz.engine import Target

__all__ = ["TARGETS", "WEIGHTS", "shares"]

WEIGHTS = {
    **dict.fromkeys(("json_header", "binary_header"), 200),
    "batch": 150,
    "record": 120,
    "frames": 60,
    "log_scan": 60,
    "header_fields": 60,
    "properties": 50,
    **dict.fromkeys(("apache_index", "manifest"), 30),
    "sql92": 25,
    "json_bodies": 25,
    "json_in_loop": 2,
    "message_id": 20,
    "checkpoint": 15,
    "done_sets": 15,
    "progress": 12,
    "acl_file": 12,
    "tags": 10,
    "journal": 6,
    "pop_journal": 6,
    "delay_store": 1,
    **dict.fromkeys(("key_index", "config_tables", "identity", "apache_files", "delay_offsets"), 8),
    **dict.fromkeys(("run", "commit_log", "consume_queue", "properties_file"), 5),
}
"""Shares of a run's inputs: the quick ones, which are also those that anybody can reach, get most."""

TARGETS: dict[str, Target] = {
    target.name: target
    for targets in (wire_targets, store_targets, spill_targets, pop_targets, config_targets)
    for target in targets.TARGETS
}


def shares(names: Iterable[str], inputs: int) -> dict[str, int]:
    """How many of so many inputs each of these targets gets."""
    weights = {name: WEIGHTS[name] for name in names}
    return {name: -(-inputs * weight // sum(weights.values())) for name, weight in weights.items()}
