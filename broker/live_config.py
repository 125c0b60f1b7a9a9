"""Changes the configuration while the broker runs (UPDATE_BROKER_CONFIG), and writes it into the file.

Apache's broker accepts any key, changes a field of an object, and rewrites its whole configuration file. The field may
never be read again. Here a key either takes effect at once, or is refused and named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.config.config_keys import LIVE_KEYS, USED_KEYS
from broker.config.key import Live, shown
from broker.config.properties_file import update_properties_file
from broker.parts import BrokerParts
from broker.processor_set import ProcessorSet
from store.disk.files import Files
from store.options import StoreOptions

__all__ = ["apply_changes", "save_changes", "take_over"]

_LOG = logging.getLogger(__name__)


def take_over(config: BrokerConfig, fresh: BrokerConfig, changed_keys: Callable[[list[str]], None]) -> list[str]:
    """Apply a configuration that was read again, as far as its keys can change now; return the changed keys.

    Keys that are read at start only keep their values; the log names them. Runs in the network loop. Raises StoreError
    if topics cannot be written.
    """
    differing = [name for name in USED_KEYS if config.get_text(name) != fresh.get_text(name)]
    changed = [name for name in differing if name in LIVE_KEYS]
    for name in differing:
        if name in LIVE_KEYS:
            _LOG.warning("%s from now on", shown(name, fresh.get_text(name)))
            config.set_value(name, fresh.get_text(name))
        else:
            _LOG.warning("%s takes effect at the next start", shown(name, fresh.get_text(name)))
    new = sorted({*fresh.unknown} - {*config.unknown})
    if new:
        _LOG.warning("unknown settings (typing mistakes?): %s", ", ".join(new))
    if changed:
        changed_keys(changed)
    return changed


def save_changes(files: Files, path: Path, changes: Mapping[str, str]) -> None:
    """Write changed values into the configuration file that was read at start; the rest of it stays as it is.

    So do its mode, its owner, and a symbolic link to it. Raises OSError or StoreError, and the file is as it was.
    """
    files.replace_kept(path, update_properties_file(path.read_bytes(), changes))


def apply_changes(parts: BrokerParts, processors: ProcessorSet, keys: Iterable[str]) -> None:
    """Let changed values take effect. Runs in the network loop; raises StoreError if topics cannot be written."""
    config = parts.config
    changed = {USED_KEYS[name].live for name in keys if name in USED_KEYS}
    if Live.RETENTION in changed:
        parts.store.retention.set_options(StoreOptions.from_config(config.values))
    if Live.PULL in changed:
        processors.pull.set_limits(processors.pull_limits())
    if Live.TOPICS in changed:
        enabled, queues = config.get_bool("autoCreateTopicEnable"), config.get_int("defaultTopicQueueNums")
        parts.topics.set_auto_create(enabled, queues)
    if Live.BOUNDS in changed:
        parts.topics.auto_create_max = config.get_int("maxAutoCreateTopicNum")
        parts.groups.auto_create_max = config.get_int("maxAutoCreateSubscriptionGroupNum")
        parts.offsets.count_max = config.get_int("maxConsumerOffsetNum")
    if Live.GROUPS in changed:
        parts.groups.set_auto_create(config.get_bool("autoCreateSubscriptionGroup"))
    if Live.QUERY in changed:
        processors.query.set_max_unique(config.get_int("defaultQueryMaxNum"))
    if Live.LOG in changed:
        logging.getLogger().setLevel(config.get_text("logLevel"))
