"""Which processors a broker has, and what each is given of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.acl_rules import PUB
from broker.bounds import figures
from broker.dispatcher import Processor
from broker.processors.admin import AdminProcessor
from broker.processors.client import ClientProcessor
from broker.processors.consumer_status import ConsumerStatusProcessor
from broker.processors.lock import LockProcessor
from broker.processors.offsets import OffsetProcessor
from broker.processors.progress import ProgressProcessor
from broker.processors.pull import PullLimits, PullProcessor
from broker.processors.query import QueryProcessor
from broker.processors.queue_view import QueueViewProcessor
from broker.processors.recall import RecallProcessor
from broker.processors.reply import ReplyProcessor
from broker.processors.resume import ResumeProcessor
from broker.processors.runtime import RuntimeProcessor
from broker.processors.send import SendProcessor
from broker.processors.send_back import SendBackProcessor
from broker.processors.transaction import TransactionProcessor
from broker.traffic import Traffic
from broker.transaction_checks import CheckRules, TransactionChecks
from broker.unique_keys import UniqueKeys
from remoting.signing import ACCESS_KEY

if TYPE_CHECKING:
    from broker.core import BrokerCore

__all__ = ["ProcessorSet"]

_IN_MEMORY_SHARE = 0.4
"""Share of the machine's memory that the CommitLog's end is taken to occupy (accessMessageInMemoryMaxRatio)."""


class ProcessorSet:
    """The processors of one broker; those with figures of their own by name."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        config = core.config
        self.traffic = Traffic(core.store.queues, config.cluster_name, self._totals)
        self.pull = self._make_pull()
        self.transactions = TransactionProcessor(
            store=core.store,
            topics=core.topics,
            turn=core.turn,
            halves=core.halves,
            timeout_ms=lambda: config.get_int("transactionTimeOut"),
            reserved_ms=lambda: config.get_int("fileReservedTime") * 3_600_000,
            may_send=lambda: not config.get_bool("rejectTransactionMessage"),
            undecided_max=lambda: config.get_int("maxUndecidedTransactionNum"),
            address=config.advertised,
            may=core.may,
        )
        self.checks = TransactionChecks(
            store=core.store,
            turn=core.turn,
            halves=core.halves,
            offsets=core.offsets,
            producers=core.clients.producers,
            dispatcher=core.dispatcher,
            transactions=self.transactions,
            rules=lambda: CheckRules(
                config.get_int("transactionTimeOut"),
                config.get_int("transactionCheckMax"),
                config.get_int("transactionCheckInterval"),
                config.get_int("fileReservedTime") * 3_600_000,
            ),
            broker_name=config.broker_name,
            may_see=lambda client, topic: core.acl is None or core.acl.client_may(client, [(topic, PUB)]),
        )
        self.send = self._make_send()
        self.reply = ReplyProcessor(
            admit=self.send.admit,
            clients=core.clients,
            dispatcher=core.dispatcher,
            turn=core.turn,
            now_ms=core.now_ms,
            may_store=lambda: config.get_bool("storeReplyMessageEnable"),
            address=core.address,
            max_message_bytes=core.store.options.max_message_bytes,
        )
        self.query = QueryProcessor(
            store=core.store, plugins=core.plugins, max_unique=config.get_int("defaultQueryMaxNum"), may=core.may
        )
        self.runtime = RuntimeProcessor(
            config=config,
            store=core.store,
            plugins=core.plugins,
            counters=self._counters,
            booted_ms=core.now_ms(),
            changed=core.config_changed,
            save=core.save_config,
            more=self._more,
        )

    def all(self) -> list[Processor]:
        """List them."""
        core = self._core
        config = core.config
        return [
            self.pull,
            self.query,
            self.runtime,
            self.transactions,
            ResumeProcessor(
                store=core.store,
                turn=core.turn,
                halves=core.halves,
                timeout_ms=lambda: config.get_int("transactionTimeOut"),
                reserved_ms=lambda: config.get_int("fileReservedTime") * 3_600_000,
                now_ms=core.now_ms,
            ),
            self.send,
            self.reply,
            self._make_send_back(),
            RecallProcessor(
                topics=core.topics,
                plugins=core.plugins,
                broker_name=config.broker_name,
                region=config.get_text("regionId"),
                enabled=lambda: config.get_bool("recallMessageEnable"),
            ),
            LockProcessor(core.locks, core.topics, core.groups, config.broker_name),
            QueueViewProcessor(store=core.store, clients=core.clients),
            ClientProcessor(
                topics=core.topics,
                groups=core.groups,
                clients=core.clients,
                dispatcher=core.dispatcher,
                may_notify=lambda: config.get_bool("notifyConsumerIdsChangedEnable"),
                by_property=lambda: config.get_bool("enablePropertyFilter"),
                account_of=lambda command: "" if core.acl is None else command.ext.get(ACCESS_KEY, ""),
            ),
            ConsumerStatusProcessor(core.clients, core.dispatcher),
            OffsetProcessor(
                store=core.store,
                topics=core.topics,
                groups=core.groups,
                offsets=core.offsets,
                in_memory_bytes=int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _IN_MEMORY_SHARE),
            ),
            AdminProcessor(
                topics=core.topics,
                groups=core.groups,
                offsets=core.offsets,
                delete_topic=core.delete_topic,
                delay_offsets=lambda: {queue.level: queue.lowest for queue in core.level_scheduler.progress.queues},
            ),
            ProgressProcessor(
                store=core.store,
                topics=core.topics,
                groups=core.groups,
                offsets=core.offsets,
                clients=core.clients,
                dispatcher=core.dispatcher,
                broker_name=config.broker_name,
                address=lambda: core.address,
                traffic=self.traffic,
            ),
        ]

    def pull_limits(self) -> PullLimits:
        """Read from the configuration how much one pull gets at most."""
        config = self._core.config
        return PullLimits(
            config.get_int("maxTransferCountOnMessageInMemory"),
            config.get_int("maxTransferBytesOnMessageInMemory"),
            config.get_int("maxTransferCountOnMessageInDisk"),
            config.get_int("maxTransferBytesOnMessageInDisk"),
        )

    def _counters(self) -> dict[str, int]:
        core, pull = self._core, self.pull
        return {
            "put": core.turn.put_count,
            "put_bytes": core.store.put_bytes,
            "found": pull.found_count,
            "miss": pull.miss_count,
            "messages": pull.message_count,
        }

    def _totals(self) -> tuple[int, int]:
        return self._core.turn.put_count, self.pull.message_count

    def _more(self) -> dict[str, str]:
        levels = self._core.level_scheduler.runtime_info()
        return {
            **levels,
            **figures(self._core.bounds),
            **self.transactions.runtime_info(),
            **self.checks.runtime_info(),
            **self.reply.runtime_info(),
        }

    def _make_send(self) -> SendProcessor:
        core = self._core
        return SendProcessor(
            topics=core.topics,
            groups=core.groups,
            locks=core.locks,
            turn=core.turn,
            unique_keys=UniqueKeys(core.config.advertised, os.getpid()),
            cluster_name=core.config.cluster_name,
            max_message_bytes=core.store.options.max_message_bytes,
            put_half=self.transactions.put_half,
            permission=core.permission,
            address=core.config.advertised,
            random=core.random,
        )

    def _make_send_back(self) -> SendBackProcessor:
        core = self._core
        return SendBackProcessor(
            store=core.store,
            topics=core.topics,
            groups=core.groups,
            turn=core.turn,
            now_ms=core.now_ms,
            permission=core.permission,
            address=core.config.advertised,
            random=core.random,
            sent_back=self.traffic.sent_back,
            may=core.may,
        )

    def _make_pull(self) -> PullProcessor:
        core = self._core
        config = core.config
        return PullProcessor(
            store=core.store,
            topics=core.topics,
            groups=core.groups,
            clients=core.clients,
            offsets=core.offsets,
            long_poll=core.long_poll,
            cold_reads=core.cold_reads,
            spawn=core.dispatcher.spawn,
            limits=self.pull_limits(),
            permission=core.permission,
            may_hold=lambda: config.get_bool("longPollingEnable"),
            by_property=lambda: config.get_bool("enablePropertyFilter"),
            address=config.advertised,
            got=self.traffic.got,
            waiting_max=config.get_int("pullThreadPoolQueueCapacity"),
        )
