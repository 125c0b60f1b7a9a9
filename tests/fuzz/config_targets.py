"""Targets: the files under ``config/``, and the files that people write."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path

import broker.access.acl_file
import broker.access.acl_rules
import broker.config.properties_file
import broker.tables.groups
import broker.tables.json_files
import broker.tables.offsets
import broker.tables.topics
from broker.access.acl_file import AclFileError
from broker.access.acl_rules import AclRules
from broker.config.properties_file import PropertiesError, parse_properties_file, update_properties_file
from broker.tables.groups import SubscriptionGroup, SubscriptionGroups
from broker.tables.offsets import ConsumerOffsets
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import Topics
from store.disk.errors import StoreCorruptError
from tests.fuzz.engine import Target
from tests.fuzz.memory import MemoryFiles
from tests.fuzz.wire_targets import JSON_WORDS, make_json

__all__ = ["TARGETS"]

PATH = Path("/store/config/x.json")
VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 1_763_600_000_000}


def run_tables(data: bytes) -> Hashable:
    """One document as the file of topics, groups and offsets; what is read is written and read again."""
    files = MemoryFiles({PATH: data, PATH.with_name("x.json.bak"): b'{"dataVersion":{"counter":1,"timestamp":2}}'})
    topics = Topics(files, PATH, lambda: 17)
    groups = SubscriptionGroups(files, PATH, lambda: 17)
    offsets = ConsumerOffsets(files, PATH, lambda: 17)
    ended = []
    for table in (topics, groups, offsets):
        try:
            table.load()
        except StoreCorruptError as error:
            ended.append(type(error).__name__)
        else:
            ended.append("")
    for config in topics.table.values():
        assert type(config.perm) is type(config.queue_limit) is int, config
    offsets.clamp(lambda _topic, _queue_id: 100)
    for queues in offsets.table.values():
        assert all(type(queue) is int and offset <= 100 for queue, offset in queues.items()), queues
    return tuple(ended), len(offsets.table), len(groups.forbidden)


def _tables() -> list[bytes]:
    group = SubscriptionGroup("g").fields
    return [
        json.dumps(document).encode()
        for document in (
            {"dataVersion": VERSION, "topicConfigTable": {"T": TopicConfig("T", attributes={"+a": "b"}).to_json()}},
            {"dataVersion": VERSION, "subscriptionGroupTable": {"g": group}, "forbiddenTable": {"g": {"T": 4}}},
            {"dataVersion": VERSION, "offsetTable": {"T@g": {"0": 5, "1": 700}, "S@h": {"0": -1}}},
        )
    ]


ACL = """globalWhiteRemoteAddresses:
- 10.1.2.*
- 192.168.1-2.*
- 172.16.0.{3,4}
accounts:
- accessKey: reader-key   # who reads
  secretKey: "12345678"
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - a=PUB|SUB
  - 'b=DENY'
  groupPerms:
  - g=SUB
-
  accessKey: 'admin-key'
  secretKey: 87654321
  whiteRemoteAddress: 127.0.0.1,10.0.0.*
  admin: true
"""
ACL_WORDS = tuple(
    line.encode() + b"\n"
    for line in (
        *ACL.splitlines(),
        *(
            "---",
            "- - a",
            "\t- x",
            "- a:",
            "  - b:",
            "    - c:",
            "a: [1]",
            "a: {b: c}",
            "a: *b",
            "a: |",
            "x: 'y",
            "&a b",
        ),
        *(
            "whiteRemoteAddress:",
            "  - 1.2.3.4",
            "accounts:",
            "accounts: x",
            "admin:",
            "  - true",
            "- {1,2}",
            "- 999.1.1.1",
        ),
        *("- 1.2.3.{ ,4}", "- 3-1.2.*.4", "- ,", "- \u0663.1.1.1"),
    )
)


def run_acl(data: bytes) -> Hashable:
    """The file of rights."""
    rules = AclRules.read(data)
    for white in (*rules.white, *(account.is_white for account in rules.accounts.values())):
        white("10.1.2.3")
        white("no address")
    for account in rules.accounts.values():
        account.refusal("a", 4)
        account.refusal("%RETRY%g", 8)
    return len(rules.accounts), len(rules.white)


CONF = b"# where\nbrokerName = broker-a\nnamesrvAddr: 192.0.2.1:9876;\\\n  192.0.2.2:9876\n!x\nflush\\ it=\\u00e4\\t \n"


def run_properties_file(data: bytes) -> Hashable:
    """``broker.conf``: read, changed in one place, read again."""
    before = parse_properties_file(data)
    changes = {"brokerName": "b\u00e4 = #1\\", "fresh": " \t"}
    changed = update_properties_file(data, changes)
    assert parse_properties_file(changed) == {**before, **changes}, changed
    return len(before)


TARGETS = (
    Target(
        *("config_tables", run_tables, _tables, ()),
        (broker.tables.json_files, broker.tables.topics, broker.tables.groups, broker.tables.offsets),
        words=(*JSON_WORDS, *(f'"{name}"'.encode() for name in ("T@g", "stateVersion", "perm", "attributes", "order"))),
        make=make_json,
        memory=2_000,
    ),
    Target(
        *(
            "acl_file",
            run_acl,
            lambda: [ACL.encode()],
            (AclFileError,),
            (broker.access.acl_file, broker.access.acl_rules),
        ),
        words=ACL_WORDS,
    ),
    Target(
        *("properties_file", run_properties_file, lambda: [CONF], (PropertiesError,), (broker.config.properties_file,)),
        words=(
            b"\\",
            b"\\u",
            b"\r\n",
            b"\r",
            b"\f",
            b"=",
            b":",
            b"#",
            b"!",
            b"brokerName",
            b"\xef\xbb\xbf",
            b"\\ud800",
        ),
    ),
)
