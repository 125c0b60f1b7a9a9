"""The processors of a broker, each made with the parts of the broker that it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.access.acl_rules import PUB
from broker.figures.traffic import Traffic
from broker.net.asides import Asides
from broker.net.processor import Processor
from broker.parts import BrokerParts
from broker.pending.processor import PendingProcessor
from broker.pop_service import PopService
from broker.processors.admin import AdminProcessor
from broker.processors.assignment import AssignmentProcessor
from broker.processors.client import ClientProcessor
from broker.processors.consumer_status import ConsumerStatusProcessor
from broker.processors.lock import LockProcessor
from broker.processors.offsets import OffsetProcessor
from broker.processors.progress import ProgressProcessor
from broker.processors.query import QueryProcessor
from broker.processors.queue_view import QueueViewProcessor
from broker.processors.runtime import RuntimeProcessor
from broker.pulling.pull import PullProcessor
from broker.pulling.pull_request import PullLimits
from broker.sending.admission import Admission
from broker.sending.recall import RecallProcessor
from broker.sending.reply import ReplyProcessor
from broker.sending.send import SendProcessor
from broker.sending.send_back import SendBackProcessor
from broker.sending.unique_keys import UniqueKeys
from broker.transactions.resume import ResumeProcessor
from broker.transactions.transaction_checks import CheckRules, TransactionChecks
from broker.transactions.transaction_processor import TransactionProcessor
from remoting.signing import ACCESS_KEY

__all__ = ["ProcessorSet"]

_IN_MEMORY_SHARE = 0.4
"""Share of the machine's memory that the CommitLog's end is taken to occupy (accessMessageInMemoryMaxRatio)."""


class ProcessorSet:
    """The processors of one broker; those with figures of their own by name."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        delete_topic: Callable[[str, Callable[[], Any]], bool],
        config_changed: Callable[[list[str]], None],
        save_config: Callable[[Mapping[str, str]], bool],
        bound_figures: Callable[[], dict[str, str]],
    ) -> None:
        """The arguments after ``parts`` are actions of the whole broker (`broker.core.BrokerCore`)."""
        self._parts = parts
        self.asides = Asides()
        self._delete_topic = delete_topic
        self._bound_figures = bound_figures
        config = parts.config
        self.traffic = Traffic(parts.store.queues, config.cluster_name, self._totals)
        self.pull, self.pop = self._make_readers()
        self.transactions = self._make_transactions()
        self.checks = self._make_checks()
        self.admission = Admission(
            topics=parts.topics,
            groups=parts.groups,
            turn=parts.turn,
            permission=parts.permission,
            address=config.advertised,
            random=parts.random,
        )
        self.send, self.assignment = self._make_send(), self._make_assignment()
        self.reply = ReplyProcessor(
            admit=self.admission.admit,
            clients=parts.clients,
            dispatcher=parts.dispatcher,
            turn=parts.turn,
            now_ms=parts.now_ms,
            may_store=lambda: config.get_bool("storeReplyMessageEnable"),
            address=parts.address,
            max_message_bytes=parts.store.options.max_message_bytes,
            reply_topic=f"{config.cluster_name}_REPLY_TOPIC",
            may=parts.may,
        )
        self.query = QueryProcessor(
            store=parts.store, plugins=parts.plugins, max_unique=config.get_int("defaultQueryMaxNum"), may=parts.may
        )
        self.runtime = RuntimeProcessor(
            config=config,
            store=parts.store,
            plugins=parts.plugins,
            counters=self._counters,
            booted_ms=parts.now_ms(),
            changed=config_changed,
            save=save_config,
            more=self._more,
        )

    def all(self) -> list[Processor]:
        """List them."""
        return [*self._senders_and_readers(), *self._of_clients(), *self._of_administrators()]

    def _senders_and_readers(self) -> list[Processor]:
        parts = self._parts
        config = parts.config
        return [
            *(self.pull, *self.pop.processors(), self.query, self.assignment, self.runtime, self.transactions),
            ResumeProcessor(
                store=parts.store,
                turn=parts.turn,
                halves=parts.halves,
                timeout_ms=lambda: config.get_int("transactionTimeOut"),
                reserved_ms=lambda: config.get_int("fileReservedTime") * 3_600_000,
                now_ms=parts.now_ms,
            ),
            self.send,
            self.reply,
            self._make_send_back(),
            RecallProcessor(
                topics=parts.topics,
                plugins=parts.plugins,
                broker_name=config.broker_name,
                region=config.get_text("regionId"),
                enabled=lambda: config.get_bool("recallMessageEnable"),
            ),
            PendingProcessor(topics=parts.topics, plugins=parts.plugins, store_host=lambda: parts.store.store_host),
        ]

    def _of_clients(self) -> list[Processor]:
        """Groups, connections and offsets of clients."""
        parts = self._parts
        config = parts.config
        return [
            LockProcessor(parts.locks, parts.topics, parts.groups, config.broker_name),
            QueueViewProcessor(store=parts.store, clients=parts.clients),
            ClientProcessor(
                topics=parts.topics,
                groups=parts.groups,
                clients=parts.clients,
                dispatcher=parts.dispatcher,
                may_notify=lambda: config.get_bool("notifyConsumerIdsChangedEnable"),
                by_property=lambda: config.get_bool("enablePropertyFilter"),
                account_of=lambda command: "" if parts.acl is None else command.ext.get(ACCESS_KEY, ""),
            ),
            ConsumerStatusProcessor(parts.clients, parts.dispatcher, self.asides),
            OffsetProcessor(
                store=parts.store,
                topics=parts.topics,
                groups=parts.groups,
                offsets=parts.offsets,
                in_memory_bytes=int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _IN_MEMORY_SHARE),
            ),
        ]

    def _of_administrators(self) -> list[Processor]:
        parts = self._parts
        return [
            AdminProcessor(
                topics=parts.topics,
                groups=parts.groups,
                offsets=parts.offsets,
                delete_topic=self._delete_topic,
                asides=self.asides,
                delay_offsets=lambda: {queue.level: queue.lowest for queue in parts.level_scheduler.progress.queues},
            ),
            ProgressProcessor(
                store=parts.store,
                topics=parts.topics,
                groups=parts.groups,
                offsets=parts.offsets,
                clients=parts.clients,
                dispatcher=parts.dispatcher,
                broker_name=parts.config.broker_name,
                address=lambda: parts.address,
                traffic=self.traffic,
                asides=self.asides,
            ),
        ]

    def pull_limits(self) -> PullLimits:
        """Read from the configuration how much one pull gets at most."""
        config = self._parts.config
        return PullLimits(
            config.get_int("maxTransferCountOnMessageInMemory"),
            config.get_int("maxTransferBytesOnMessageInMemory"),
            config.get_int("maxTransferCountOnMessageInDisk"),
            config.get_int("maxTransferBytesOnMessageInDisk"),
        )

    def _counters(self) -> dict[str, int]:
        parts, pull = self._parts, self.pull
        return {
            "put": parts.turn.put_count,
            "put_bytes": parts.store.put_bytes,
            "found": pull.found_count,
            "miss": pull.miss_count,
            "messages": pull.message_count,
        }

    def owing(self) -> int:
        """Answers since the start that left another whole answer behind: their consumers are behind."""
        return self.pull.owing_count + self.pop.pop.owing_count

    def _totals(self) -> tuple[int, int]:
        return self._parts.turn.put_count, self.pull.message_count

    def _more(self) -> dict[str, str]:
        levels = self._parts.level_scheduler.runtime_info()
        return {
            **levels,
            **self._bound_figures(),
            **self.transactions.runtime_info(),
            **self.checks.runtime_info(),
            **self.reply.runtime_info(),
            **self.pop.runtime_info(),
        }

    def _make_transactions(self) -> TransactionProcessor:
        parts, config = self._parts, self._parts.config
        return TransactionProcessor(
            store=parts.store,
            topics=parts.topics,
            turn=parts.turn,
            halves=parts.halves,
            timeout_ms=lambda: config.get_int("transactionTimeOut"),
            reserved_ms=lambda: config.get_int("fileReservedTime") * 3_600_000,
            may_send=lambda: not config.get_bool("rejectTransactionMessage"),
            undecided_max=lambda: config.get_int("maxUndecidedTransactionNum"),
            address=config.advertised,
            may=parts.may,
        )

    def _make_checks(self) -> TransactionChecks:
        parts, config = self._parts, self._parts.config
        return TransactionChecks(
            store=parts.store,
            turn=parts.turn,
            halves=parts.halves,
            offsets=parts.offsets,
            producers=parts.clients.producers,
            dispatcher=parts.dispatcher,
            transactions=self.transactions,
            rules=lambda: CheckRules(
                config.get_int("transactionTimeOut"),
                config.get_int("transactionCheckMax"),
                config.get_int("transactionCheckInterval"),
                config.get_int("fileReservedTime") * 3_600_000,
            ),
            broker_name=config.broker_name,
            may_see=lambda client, topic: parts.acl is None or parts.acl.client_may(client, [(topic, PUB)]),
        )

    def _make_send(self) -> SendProcessor:
        parts = self._parts
        return SendProcessor(
            topics=parts.topics,
            groups=parts.groups,
            locks=parts.locks,
            turn=parts.turn,
            unique_keys=UniqueKeys(parts.config.advertised, os.getpid()),
            cluster_name=parts.config.cluster_name,
            max_message_bytes=parts.store.options.max_message_bytes,
            put_half=self.transactions.put_half,
            admission=self.admission,
            large_batches=parts.large_batches,
        )

    def _make_assignment(self) -> AssignmentProcessor:
        parts = self._parts
        config = parts.config
        return AssignmentProcessor(
            topics=parts.topics,
            groups=parts.groups,
            clients=parts.clients,
            modes=parts.modes,
            asides=self.asides,
            broker_name=config.broker_name,
            default_mode=lambda: (
                config.get_text("defaultMessageRequestMode"),
                config.get_int("defaultPopShareQueueNum"),
            ),
            balances=lambda: config.get_bool("serverLoadBalancerEnable"),
        )

    def _make_send_back(self) -> SendBackProcessor:
        parts = self._parts
        return SendBackProcessor(
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            turn=parts.turn,
            now_ms=parts.now_ms,
            permission=parts.permission,
            address=parts.config.advertised,
            random=parts.random,
            sent_back=self.traffic.sent_back,
            may=parts.may,
        )

    def _make_readers(self) -> tuple[PullProcessor, PopService]:
        parts = self._parts
        config = parts.config
        pull = PullProcessor(
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            clients=parts.clients,
            offsets=parts.offsets,
            long_poll=parts.long_poll,
            cold_reads=parts.cold_reads,
            spawn=parts.dispatcher.spawn,
            limits=self.pull_limits(),
            permission=parts.permission,
            may_hold=lambda: config.get_bool("longPollingEnable"),
            by_property=lambda: config.get_bool("enablePropertyFilter"),
            address=config.advertised,
            got=self.traffic.got,
            waiting_max=config.get_int("pullThreadPoolQueueCapacity"),
        )
        waiting = partial(_waiting, pull)
        return pull, PopService(parts, limits=self.pull_limits(), waiting=waiting, got=self.traffic.got)


def _waiting(pull: PullProcessor) -> tuple[int, int]:
    return pull.waiting, pull.waiting_max
