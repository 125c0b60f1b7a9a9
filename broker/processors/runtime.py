"""The broker's configuration (UPDATE_BROKER_CONFIG 25, GET_BROKER_CONFIG 26) and figures (GET_BROKER_RUNTIME_INFO 28).

A change of configuration is checked like a setting at start, takes effect at once, is written into the configuration
file that the broker was started with, and is logged. Keys that are read at start only (addresses, sizes of files),
unknown keys and invalid values are refused; Apache's broker ignores them silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.config.changes import check_change
from broker.config.key import ConfigError, is_secret, shown
from broker.config.properties_file import PropertiesError, parse_properties_file
from broker.figures.stats import Rates
from broker.net.channel import Channel
from broker.tables.json_files import DataVersion
from remoting.codes import VERSION, RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from store.put.plugin_abilities import LiveKeysPlugin

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig
    from broker.net.processor import Handler
    from store.message_store import MessageStore
    from store.put.plugin_api import Plugin

__all__ = ["VERSION_TEXT", "RuntimeProcessor"]

_LOG = logging.getLogger(__name__)

VERSION_TEXT = "V4_9_8"
"""The name of `remoting.codes.VERSION`."""

CHANGES_MAX_BYTES = 32 << 10
"""Most bytes of a body of settings: reading takes 0.25 µs a byte."""

_FIXED_KEYS = frozenset(("configBlackList", "brokerConfigPath", "rocketmqHome", "storePathRootDir"))
_POOLS = ("send", "pull", "ack", "query", "litePull")
_NOT_MEASURED = {
    "getMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "putMessageFailedTimes": "0",
    "pageCacheLockTimeMills": "0",
    "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "10000",
}
"""Keys that exporters read but that do not exist here, with the values of an Apache broker that has none."""

_COUNTERS = ("put", "put_bytes", "found", "miss", "messages")


class RuntimeProcessor:
    """Answers the requests about the broker itself.

    Args:
        config: The configuration.
        store, plugins: Add their figures.
        counters: Reads the counters since the start: ``put`` and ``put_bytes`` (messages stored or held, their
            bytes), ``found`` and ``miss`` (pulls with and without messages), ``messages`` (messages pulled).
        booted_ms: When the broker started.
        changed: Makes changed keys take effect.
        save: Writes changed values for the next start; False if there is no configuration file.
        more: Reads figures of further parts.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        plugins: Sequence[Plugin],
        counters: Callable[[], Mapping[str, int]],
        booted_ms: int,
        changed: Callable[[list[str]], None] = lambda _: None,
        save: Callable[[Mapping[str, str]], bool] = lambda _: False,
        more: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._config = config
        self._store = store
        self._plugins = plugins
        self._plugin_keys = frozenset(
            key for plugin in plugins if isinstance(plugin, LiveKeysPlugin) for key in plugin.live_keys
        )
        self._counters = counters
        self._booted_ms = booted_ms
        self._changed = changed
        self._save = save
        self._more = more
        self._version = DataVersion(booted_ms)
        self._rates = Rates()

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
        }

    def step(self, now_ms: int) -> None:
        """Take a sample of the counters if it is due; to be called every few seconds."""
        self._rates.step(now_ms, self._counters())

    # ------------------------------------------------------------------------------------------ configuration

    def get_config(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_BROKER_CONFIG."""
        config = self._config
        values = config.effective() | {
            "bindAddress": config.listen_host,
            "brokerIP1": config.advertised,
            "listenPort": str(config.listen_port),
        }
        text = "".join(f"{key}={value}\n" for key, value in sorted(values.items()) if not is_secret(key))
        return command.reply(ext={"version": dumps(self._version.to_json()).decode()}, body=text.encode())

    def update_config(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """UPDATE_BROKER_CONFIG: changes all of the values or, if one of them is invalid, none."""
        if len(command.body) > CHANGES_MAX_BYTES:
            remark = f"the settings have {len(command.body)} bytes, at most {CHANGES_MAX_BYTES} are accepted"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        try:
            values = parse_properties_file(command.body)
            if _FIXED_KEYS & values.keys():
                return command.reply(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            for key, value in values.items():
                check_change(self._config, key, value, self._plugin_keys)
            lasts = bool(values) and self._save(values)
        except (ConfigError, PropertiesError, OSError, StoreError) as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        for key, value in values.items():
            _LOG.warning("%s:%d sets %s%s", *channel.peer, shown(key, value), "" if lasts else " until the next start")
            self._config.set_value(key, value)
        if values:
            self._version.next(now_ms)
            self._changed(sorted(values))
        return command.reply()

    # ------------------------------------------------------------------------------------------ figures

    def runtime_info(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """GET_BROKER_RUNTIME_INFO: what Apache's tools and dashboard read, the store's and the plug-ins' keys."""
        self.step(now_ms)
        table = self._usual_table(now_ms)
        table.update(self._store.runtime_info())
        table.update(self._more())
        for plugin in self._plugins:
            table.update(plugin.runtime_info())
        return command.reply(body=dumps({"table": table}))

    def _usual_table(self, now_ms: int) -> dict[str, str]:
        rates = self._rates
        counters = {**dict.fromkeys(_COUNTERS, 0), **self._counters()}
        put_yesterday, put_today = rates.mornings("put")
        get_yesterday, get_today = rates.mornings("messages")
        table = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "brokerActive": "true",
            "bootTimestamp": str(self._booted_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "runtime": _duration(now_ms - self._booted_ms),
            "putTps": rates.text("put"),
            "getTransferredTps": rates.text("messages"),
            "getFoundTps": rates.text("found"),
            "getMissTps": rates.text("miss"),
            "getTotalTps": rates.text("found", "miss"),
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(counters["put"]),
            "msgGetTotalYesterdayMorning": str(get_yesterday),
            "msgGetTotalTodayMorning": str(get_today),
            "msgGetTotalTodayNow": str(counters["messages"]),
            "putMessageTimesTotal": str(counters["put"]),
            "putMessageSizeTotal": str(counters["put_bytes"]),
            "putMessageAverageSize": str(round(counters["put_bytes"] / max(1, counters["put"]), 1)),
            **_NOT_MEASURED,
        }
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = "10000"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table.update(dict.fromkeys(("timerReadBehind", "timerOffsetBehind", "timerCongestNum"), "0"))
        table.update(dict.fromkeys(("timerEnqueueTps", "timerDequeueTps"), "0.0"))
        return table


def _duration(span_ms: int) -> str:
    """Write a time span as Apache's broker does: ``[ 0 days, 0 hours, 2 minutes, 9 seconds ]``."""
    seconds = max(0, span_ms) // 1000
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
