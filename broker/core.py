"""The broker without sockets: store, plug-ins, tables and processors put together.

`broker.broker` adds the network loop. A simulation or a test uses this alone, with `MemoryChannel`s, a clock of its own
and a disk that breaks. It calls ``dispatcher.received`` and ``end_turn`` where the loop would, steps the work of the
threads itself, and never calls ``start``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from broker.access.access_table import everybody_may
from broker.access.acl import Acl
from broker.bounds import broker_bounds, figures
from broker.config.broker_config import BrokerConfig
from broker.live_config import apply_changes, save_changes
from broker.net.channel import SHARDS_PORT, Channel
from broker.net.clients import Clients
from broker.net.clock import now_ms as wall_clock_ms
from broker.net.dispatcher import Dispatcher
from broker.parts import BrokerParts
from broker.processor_set import ProcessorSet
from broker.pulling.cold_reads import ColdReads
from broker.pulling.long_poll import LongPoll
from broker.tables.groups import SubscriptionGroups
from broker.tables.offsets import ConsumerOffsets
from broker.tables.queue_locks import QueueLocks
from broker.tables.request_modes import RequestModes
from broker.tables.table_writer import TableWriter
from broker.tables.topics import Topics
from broker.transactions.opening import recover_half_messages
from broker.turns.large_batch import LargeBatches
from broker.turns.turn import Turn
from remoting.messages.message import encode_host
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.disk.files import Files
from store.half_messages import HalfMessages
from store.levels.delay_levels import DelayLevels
from store.levels.level_scheduler import LevelScheduler
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_abilities import PromisingPlugin
from store.put.plugin_api import Plugin, PluginContext, PutStatus

__all__ = ["BrokerCore"]

_LOG = logging.getLogger(__name__)
_LEAVE_AT_ONCE = 1_000


class BrokerCore(BrokerParts):
    """A broker without its sockets, open when it is made. Raises StoreError, or a plug-in's error.

    Args:
        config: The configuration.
        port: The port that clients dial; it is part of every message id.
        plugins: Loaded, not yet opened.
        files: Access to the disk.
        now_ms: A clock for everything, plug-ins included; by default the wall clock, and plug-ins use their own.
        schedule: Must let `end_turn` be called soon.
        call_soon_threadsafe: Runs something in the network loop, from any thread.
        spawn: Runs a coroutine; by default as a task of the running loop.
        random: For queues that the broker picks.
    """

    def __init__(
        self,
        config: BrokerConfig,
        port: int,
        plugins: list[Plugin],
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] | None = None,
        schedule: Callable[[], None] = lambda: None,
        call_soon_threadsafe: Callable[[Callable[[], None]], object] = lambda call: call(),
        spawn: Callable[[Coroutine[Any, Any, None]], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self.config = config
        self.port = port
        self.address = f"{config.advertised}:{port}"
        self.config_listeners: list[Callable[[], None]] = []
        """Called after the configuration was changed at run time."""
        self.plugins = plugins
        self.files = files or Files()
        self.now_ms = now_ms or wall_clock_ms
        self._schedule = schedule
        self._call_soon_threadsafe = call_soon_threadsafe
        self.random = random or Random()
        self._opened: list[Plugin] = []
        self._endings: list[Callable[[], None]] = []
        """Functions that close what was opened so far; the last one is called first."""
        self._saving = threading.Lock()
        try:
            self._open(now_ms, spawn)
        except (StoreCorruptError, StoreFormatError) as error:
            if str(config.store_dir) not in str(error):
                raise  # about a setting
            hint = (
                f"To see what is wrong: timewheel check {config.store_dir}; to mend what can be: the same with --repair"
            )
            raise type(error)(f"{error}. {hint}") from error

    def _open(self, clock: Callable[[], int] | None, spawn: Callable[[Coroutine[Any, Any, None]], None] | None) -> None:
        options = StoreOptions.from_config(self.config.values)
        if bits := self.files.open_to_others(self.config.store_dir):
            text = "%s can be opened by users other than its owner (mode bits %03o): run chmod -R go= %s"
            _LOG.warning(text, self.config.store_dir, bits, self.config.store_dir)
        self.store = MessageStore.open(self.files, self.config.store_dir, options, self.now_ms, _LOG.warning)
        self.store.pops_open = not self.store.was_clean  # until their journal is closed
        self._endings.append(self.store.close)
        try:
            self._open_tables()
            self._open_deliveries(clock)
            self._open_processors(spawn)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------ opening

    def _open_tables(self) -> None:
        """Read the tables that belong to the store, and make them agree with the messages."""
        config, store = self.config, self.store
        store.store_host = encode_host(config.advertised, self.port)
        directory: Path = config.store_dir / "config"
        self.topics = Topics(
            self.files,
            directory / "topics.json",
            self.now_ms,
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            auto_create=config.get_bool("autoCreateTopicEnable"),
            default_queue_nums=config.get_int("defaultTopicQueueNums"),
            auto_create_max=config.get_int("maxAutoCreateTopicNum"),
            trace_topic=config.get_text("msgTraceTopicName") if config.get_bool("traceTopicEnable") else None,
        )
        self.topics.load()
        self.groups = SubscriptionGroups(
            self.files,
            directory / "subscriptionGroup.json",
            self.now_ms,
            auto_create=config.get_bool("autoCreateSubscriptionGroup"),
            auto_create_max=config.get_int("maxAutoCreateSubscriptionGroupNum"),
        )
        self.groups.load()
        self.modes = RequestModes(self.files, directory / "messageRequestMode.json")
        self.modes.load()
        self.tables = TableWriter(self._call_soon_threadsafe, self._schedule)
        for table in (self.topics, self.groups, self.modes):
            table.written_by(self.tables)
        self.offsets = ConsumerOffsets(
            self.files, directory / "consumerOffset.json", self.now_ms, config.get_int("maxConsumerOffsetNum")
        )
        self.offsets.load()
        self.topics.before_save = partial(self.save_offsets, if_forgotten=True)
        on_disk = [(name, max(store.queue_ids(name)) + 1) for name in store.topics_on_disk()]
        for name in self.topics.adopt(on_disk):
            _LOG.warning("topic %s has messages but no configuration: it gets the default one", name)
        clamped = self.offsets.clamp(store.max_offset)
        for sentence in clamped:
            _LOG.warning("%s", sentence)
        if clamped:
            # Before the queue offsets are given out again: after a kill the old consumer offset would be taken for one
            # of the new ones, and new messages (half messages of transactions too) would count as consumed.
            self.save_offsets()

    def _open_deliveries(self, clock: Callable[[], int] | None) -> None:
        """Let the level scheduler and the plug-ins recover, before anything new comes."""
        store, config = self.store, self.config
        self.levels = DelayLevels(store.options.delay_levels_ms)
        store.topic_guard = self._guard
        store.queue_for = self.topics.queue_for
        self.level_scheduler = LevelScheduler(
            store,
            self.levels,
            self.now_ms,
            files=self.files,
            offsets_path=config.store_dir / "config" / "delayOffset.json",
            warn=_LOG.warning,
        )
        self.level_scheduler.recover()
        store.retention.levels_pin = self.level_scheduler.min_needed_offset
        for plugin in self.plugins:
            self._opened.append(plugin)
            self._endings.append(plugin.close)
            plugin.open(
                PluginContext(
                    target=store,
                    files=self.files,
                    directory=config.store_dir / "timewheel" / plugin.name,
                    store_id=store.store_id,
                    store_host=store.store_host,
                    config=config.values,
                    flusher=store.flusher,
                    checkpoint=store.checkpoint,
                    now_ms=clock,
                    warn=_LOG.warning,
                )
            )
            if isinstance(plugin, PromisingPlugin):
                store.retention.promises.append(plugin.promised_bytes)
        store.retention.look_at_disk()
        self.topics.listeners.append(self._topics_changed)
        self.halves = self._recover_transactions()
        if store.recovery.rebuilt:
            # A queue whose messages are all gone begins at 0 again. The old checkpoint, and copies and decisions in the
            # log behind it, speak of the old queue offsets: they must not be applied to the new messages.
            store.take_checkpoint()

    def _recover_transactions(self) -> HalfMessages:
        return recover_half_messages(self.store, self.offsets, self.now_ms, _LOG.warning)

    def _open_processors(self, spawn: Callable[[Coroutine[Any, Any, None]], None] | None) -> None:
        config, store = self.config, self.store
        self._endings += [self.save_offsets, self.tables.stop]
        self.clients = Clients(config.get_int("channelExpiredTimeout"))
        self.locks = QueueLocks(config.get_int("lockMaxLiveTime"))
        self.long_poll = LongPoll(lambda: self._call_soon_threadsafe(self._schedule))
        self.cold_reads = ColdReads(store)
        self.dispatcher = Dispatcher(
            self.now_ms, spawn, config.get_int("replyThreadPoolQueueCapacity"), self._call_soon_threadsafe
        )
        self.acl, self.may = None, everybody_may
        if config.get_bool("aclEnable"):
            self.acl = Acl(self.files, config.acl_file, max(4 << 20, store.options.max_message_bytes))
            self.dispatcher.guard = self.acl.guard
            self.may = self.acl.may
        self.turn = Turn(
            store,
            self.plugins,
            route_level=self.levels.route,
            wake_levels=self.level_scheduler.wake,
            schedule=self._schedule,
            flush_sync=store.options.flush_sync,
            call_soon_threadsafe=self._call_soon_threadsafe,
            region=config.get_text("regionId"),
            trace_on=config.get_bool("traceOn"),
            waiting_max=config.get_int("sendThreadPoolQueueCapacity"),
            recall_name=config.broker_name if config.get_bool("recallMessageEnable") else None,
        )
        self.large_batches = LargeBatches(self._call_soon_threadsafe)
        self.processors = ProcessorSet(
            self,
            delete_topic=self.delete_topic,
            config_changed=self.config_changed,
            save_config=self.save_config,
            bound_figures=lambda: figures(self.bounds),
        )
        self._endings.append(self.processors.pop.close)
        self.bounds = broker_bounds(self, self.processors)
        """The tables that peers can grow; `broker.broker.Broker` adds those of sockets and name server."""
        for processor in self.processors.all():
            self.dispatcher.add(processor)
            self.dispatcher.add(processor, SHARDS_PORT)

    # ------------------------------------------------------------------------------------------------ running

    def start(self) -> None:
        """Start the threads: the store's, the level scheduler, the plug-ins'."""
        self.long_poll.bind()
        self.store.start()
        self.tables.start()
        self.level_scheduler.start()
        self.processors.pop.start()
        for plugin in self.plugins:
            plugin.start()

    def end_turn(self) -> None:
        """Store and answer what the turn has gathered, and serve pulls that waited for it."""
        self.turn.commit()
        self.long_poll.drain()
        self.processors.pop.answers.settle()
        self.tables.commit()

    def channel_closed(self, channel: Channel) -> None:
        """Forget a connection."""
        self.dispatcher.channel_closed(channel)
        self.long_poll.forget(channel)
        self._leave_groups(channel)

    def _leave_groups(self, channel: Channel) -> None:
        """Take a channel that was closed out of its groups, some at a time: it may be in thousands."""
        if not self.clients.leave(channel, _LEAVE_AT_ONCE):
            self._call_soon_threadsafe(partial(self._leave_groups, channel))

    def config_changed(self, keys: list[str]) -> None:
        """Let changed keys take effect, and call the listeners of the configuration."""
        apply_changes(self, self.processors, keys)
        for listener in self.config_listeners:
            listener()

    def save_config(self, changes: Mapping[str, str]) -> bool:
        """Write changed settings into the configuration file, if there is one. Raises OSError or StoreError."""
        if self.config.file is None:
            return False
        save_changes(self.files, self.config.file, changes)
        return True

    def delete_topic(self, name: str, then: Callable[[], Any] = lambda: None) -> bool:
        """Delete a topic with its messages and offsets; False if there was none. Raises StoreError.

        Raises NotYetError: its messages are removed in a thread, because all queues are synced; then ``then`` replies.
        """

        def released() -> Any:
            self.long_poll.release(name)
            return then()

        existed = self.topics.delete(name)
        self.turn.commit()  # messages that this turn has accepted for the topic are deleted with it
        self.offsets.forget_topic(name)
        self.topics.end(name, self._end_topics, released)
        self.long_poll.release(name)
        return existed

    def _end_topics(self, names: list[str]) -> None:
        """Remove the messages of topics that were deleted. Any thread."""
        try:
            self.store.delete_topics(names)
        except StoreError as error:
            what = f"topic {', '.join(names):.300} is deleted, but its messages are not"
            raise type(error)(f"{what}: {error}. Mend this, then delete the topic again") from error

    def end_tables(self) -> None:
        """Write the tables and answer requests that wait for them, after the thread ended; later ones never wait."""
        self.tables.settle()
        self.large_batches.stop()
        self.dispatcher.finish_line()

    def save_offsets(self, if_forgotten: bool = False) -> None:
        """Write the consumer offsets now, if they have changed (any thread). Raises StoreError.

        ``if_forgotten``: only if offsets of a topic that was deleted are in the file. That is done before
        ``topics.json`` is written: when the topic is made again, its numbers begin anew, and a crash must not
        bring the old offsets back over them.
        """
        with self._saving:
            if if_forgotten and not self.offsets.forgotten:
                return
            data = self.offsets.take_changes()
            if data is not None:
                try:
                    self.offsets.save_bytes(data)
                except StoreError:
                    self.offsets.save_failed()
                    raise

    def pending_count(self) -> int:
        """Messages that plug-ins keep for later."""
        return sum(plugin.pending_count() for plugin in self._opened)

    # ------------------------------------------------------------------------------------------------ ending

    def stop(self) -> None:
        """End the threads; everything acknowledged is on the disk then. May take some hundred milliseconds."""
        self.tables.stop()
        self.processors.pop.stop()
        for plugin in self._opened:
            plugin.stop()
        self.level_scheduler.stop()
        self.store.flusher.stop()
        self.store.housekeeper.stop()
        self.store.flusher.sync_all()
        self.processors.checks.publish(self.now_ms(), force=True)
        self.store.take_checkpoint()
        self.processors.checks.publish(self.now_ms())

    def close(self) -> None:
        """Close everything; also after a failed opening, or without `stop`. Raises the first StoreError."""
        failure: Exception | None = None
        while self._endings:
            try:
                self._endings.pop()()
            except Exception as error:
                _LOG.error("while closing: %s", error)
                failure = failure or error
        self._opened = []
        if failure is not None:
            raise failure

    # ------------------------------------------------------------------------------------------------ callbacks

    def _guard(self, topic: str, queue_id: int) -> PutStatus:
        """True if a delivery may be appended (any thread)."""
        config = self.topics.get(topic)
        if config is None:
            return PutStatus.TOPIC_NOT_EXIST
        return PutStatus.PUT_OK if config.writable and queue_id >= 0 else PutStatus.NO_PERMISSION

    def _topics_changed(self, _names: list[str]) -> None:
        for plugin in self.plugins:
            plugin.topics_changed()
