"""A shard that is added gets the topics, groups and consume modes of the shards that were there before.

A new shard is an empty store, and one that was out for a while has old tables. Clients spread over the brokers that
have a topic, so a shard without the topics of the others would get nothing to do. Before any process is started, the
supervisor copies three tables of a shard that was there (``config`` of its store) to each that was not:

==============================  ===============================================
``topics.json``                 but for the topics that brokers are named after
``subscriptionGroup.json``
``messageRequestMode.json``     who pops and who pulls
==============================  ===============================================

Changes that wait for the shard that was there (`broker.shards.changes`) wait for the new one, too. Only then is the new
shard written into the layout: after a crash in between, the next start copies again. Messages, offsets and pending
messages stay where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from broker.tables.json_files import JsonFile

if TYPE_CHECKING:
    from broker.shards.changes import SharedChanges
    from store.disk.files import Files

__all__ = ["inherit"]

_LOG = logging.getLogger(__name__)

_TABLES = ("topics.json", "subscriptionGroup.json", "messageRequestMode.json")


def inherit(
    files: Files,
    directory: Callable[[int], Path],
    source: int,
    new: Iterable[int],
    changes: SharedChanges,
    brokers: frozenset[str],
) -> None:
    """Give new shards the tables of ``source``. It may be repeated.

    Args:
        directory: Gives a shard's store directory.
        changes: Those that wait for ``source`` wait for the new ones from now on.
        brokers: Names of brokers: the topics of these names are each broker's own.

    Raises StoreError for tables that cannot be read or written.
    """
    new = [index for index in new if index != source]
    for name in _TABLES:
        document = JsonFile(files, directory(source) / "config" / name).load()
        if document is None:
            continue
        topics = document.get("topicConfigTable")
        if isinstance(topics, dict):
            document["topicConfigTable"] = {topic: topics[topic] for topic in topics if topic not in brokers}
        for index in new:
            JsonFile(files, directory(index) / "config" / name).save(document)
            _LOG.info("shard %d gets %s of shard %d", index, name, source)
    if changes.wait_as(source, new):
        changes.save()
