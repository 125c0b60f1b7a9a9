"""`PopService`: popping as one part of a broker: what is in flight, the processors, and the thread that revives."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial

from broker.net.processor import Processor
from broker.parts import BrokerParts
from broker.pop.acks import AckProcessor
from broker.pop.answers import Answers
from broker.pop.handle import normal_topic
from broker.pop.looks import LookProcessor
from broker.pop.pop import PopProcessor
from broker.pop.pop_polls import PopPolls
from broker.pop.pop_queues import PopQueues
from broker.pop.pop_reader import PopReader
from broker.pop.recovery import Recovering
from broker.pop.requests import Checks
from broker.pop.reviver import Reviver
from broker.pulling.pull_request import PullLimits
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import TOPICS_MAX
from store.disk.errors import StoreError
from store.pop.in_flight import InFlight
from store.pop.journal import PopJournal
from store.pop.pop_queue import PopQueue
from store.pop.replay import read_journal

__all__ = ["PopService"]

_LOG = logging.getLogger(__name__)
_IN_MEMORY_SHARE = 0.4
"""Share of the machine's memory that the CommitLog's end is taken to occupy (accessMessageInMemoryMaxRatio)."""


class PopService:
    """Puts the pieces together.

    Args:
        parts: The broker's.
        limits: Most bytes and messages of one reply.
        waiting: Returns how many pulls wait for messages or the disk, and how many may.
        got: Is told group, topic, messages and bytes handed out of a queue.
    """

    def __init__(
        self,
        parts: BrokerParts,
        *,
        limits: PullLimits,
        waiting: Callable[[], tuple[int, int]],
        got: Callable[[str, str, int, int], None],
    ) -> None:
        config = parts.config
        call_soon = parts.dispatcher.call_soon
        self._store = parts.store
        self._topics = parts.topics
        self._call_soon = call_soon
        self._moved_queues: dict[PopQueue, None] = {}  # whose offsets may move, not looked at yet
        self._tells_moved = False
        self.in_flight = InFlight(parts.now_ms(), config.get_int("maxConsumerOffsetNum"))
        self.polls = PopPolls(parts.long_poll)
        self.queues = PopQueues(
            parts.store,
            parts.offsets,
            self.in_flight,
            int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _IN_MEMORY_SHARE),
            lambda: config.get_int("popInflightMessageThreshold"),
        )
        self.reviver = Reviver(
            parts.store,
            self.in_flight,
            parts.now_ms,
            has_topic=lambda name: parts.topics.get(name) is not None,
            need_topic=lambda name: call_soon(partial(self._make_topic, name)),
            journal=lambda: self.journal,
            moved=self._has_moved,
            unblocked=lambda queues: call_soon(partial(self._wake, queues)),
        )
        self.journal = self._open_journal(parts)
        self.answers = Answers(self.journal, parts.long_poll.wake)
        self.pop, self.acks, self.looks = self._make_processors(parts, limits, waiting, got)
        parts.store.on_arrival = self.polls.arrived
        parts.groups.on_delete = self.in_flight.forget_group
        parts.offsets.on_reset = self._reset
        parts.topics.listeners.append(self._topics_changed)
        self._before_save = parts.topics.before_save
        parts.topics.before_save = self._before_topics

    def _open_journal(self, parts: BrokerParts) -> PopJournal:
        """Read from the journal which messages were in flight, and continue with them. Raises StoreError."""
        store = parts.store
        directory = parts.config.store_dir / "timewheel" / "pop"
        state = read_journal(parts.files, directory, store.store_id)
        whole = Recovering(store, parts.topics, parts.groups, parts.offsets, self.in_flight, _LOG.warning).run(state)
        self.queues.moved(self.in_flight.queues())
        journal = PopJournal(parts.files, directory, store.store_id, self.in_flight, self.reviver.settled_to)
        store.pops_open = True
        journal.begin(state.numbers, aside=not whole)
        store.flusher.add(journal, store.options.flush_interval_ms)
        store.housekeeper.add_chore(journal.name, journal.step)
        store.retention.pins.append(journal.pin)
        return journal

    def _make_processors(
        self,
        parts: BrokerParts,
        limits: PullLimits,
        waiting: Callable[[], tuple[int, int]],
        got: Callable[[str, str, int, int], None],
    ) -> tuple[PopProcessor, AckProcessor, LookProcessor]:
        config = parts.config
        checks = Checks(parts.topics, parts.groups, parts.permission, parts.address)
        reader = PopReader(
            store=parts.store,
            topics=parts.topics,
            queues=self.queues,
            polls=self.polls,
            cold_reads=parts.cold_reads,
            broker_name=config.broker_name,
            limits=limits,
            got=got,
            due=self.reviver.wake,
            now_ms=parts.now_ms,
            refusal=lambda: self.answers.refusal,
        )

        def all_waiting() -> tuple[int, int]:
            count, most = waiting()
            return count + pop.reading, most

        pop = PopProcessor(
            reader=reader,
            checks=checks,
            polls=self.polls,
            long_poll=parts.long_poll,
            spawn=parts.dispatcher.spawn,
            now_ms=parts.now_ms,
            send=self.answers.send,
            waiting=all_waiting,
        )
        acks = AckProcessor(
            store=parts.store,
            checks=checks,
            queues=self.queues,
            polls=self.polls,
            broker_name=config.broker_name,
            answers=self.answers,
            due=self.reviver.wake,
        )
        looks = LookProcessor(
            store=parts.store,
            topics=parts.topics,
            checks=checks,
            queues=self.queues,
            polls=self.polls,
            long_poll=parts.long_poll,
            cold_reads=parts.cold_reads,
            limits=limits,
            now_ms=parts.now_ms,
            waiting=all_waiting,
        )

        return pop, acks, looks

    def processors(self) -> list[Processor]:
        """List what answers requests."""
        return [self.pop, self.acks, self.looks]

    # ------------------------------------------------------------------------------------------------ what happens

    def _topics_changed(self, names: list[str]) -> None:
        """Forget the messages in flight of a deleted topic, and answer the pops that wait for it."""
        for name in names:
            if self._topics.get(name) is None:
                self.in_flight.forget_topic(name)
                self.polls.release(name)

    def _reset(self, group: str, topic: str, targets: Mapping[int, int]) -> None:
        """Forget what is in flight, in the journal too: an administrator has set offsets."""
        for queue_id, offset in targets.items():
            queue = self.in_flight.find(group, topic, queue_id)
            if queue is not None:
                self.in_flight.restart(queue, offset)

    def _before_topics(self) -> None:
        """Make it durable which queues are gone, before they can be created again. Any thread. Raises StoreError.

        A topic that is created again numbers its messages from 0. Pops of the deleted topic must not apply to them.
        """
        self._before_save()
        if self.in_flight.forgotten:
            self.in_flight.forgotten = False
            try:
                self.journal.commit()
                self.journal.sync()
            except StoreError:
                self.in_flight.forgotten = True
                raise

    def _make_topic(self, name: str) -> None:
        """Create a retry topic that the reviver waits for."""
        if self._topics.get(name) is not None:
            return
        try:
            if len(self._topics.table) + self._topics.coming >= TOPICS_MAX:
                raise StoreError(f"there are {TOPICS_MAX} topics")
            self._topics.have(TopicConfig(name, 1, 1))
        except StoreError as error:
            _LOG.error("topic %s cannot be created, and messages to be delivered again wait for it: %s", name, error)

    def _has_moved(self, queues: list[PopQueue]) -> None:
        """Have the network loop look at queues whose offsets may move; it is woken once for many slices."""
        self._moved_queues.update(dict.fromkeys(queues))
        if not self._tells_moved:
            self._tells_moved = True
            self._call_soon(self._moved)

    def _moved(self) -> None:
        """Commit offsets after messages were revived, and wake pops: there may be room in flight again."""
        self._tells_moved = False  # first: what is added from now on is told anew
        queues: list[PopQueue] = []
        while self._moved_queues:
            queues.append(self._moved_queues.popitem()[0])
        self.queues.moved(queues)
        for queue in queues:
            if self.queues.offers(queue):
                self.polls.wake(normal_topic(queue.topic, queue.group), queue.group)

    def _wake(self, queues: list[PopQueue]) -> None:
        for queue in queues:
            if not queue.gone:
                self.polls.wake(queue.topic, queue.group)

    # ------------------------------------------------------------------------------------------------ life, figures

    def start(self) -> None:
        """Start the thread that revives."""
        self.reviver.start()

    def stop(self) -> None:
        """End it."""
        self.reviver.stop()

    def close(self) -> None:
        """Close the journal, after the copies are durable and offsets have moved. Raises StoreError."""
        try:
            self.reviver.finish()
            self.queues.moved(self.in_flight.queues())
            self.answers.settle()
        finally:
            self._store.pops_open = not self.journal.close(self._store.commit_log.end)

    def check(self) -> list[str]:
        """List what is wrong with the messages in flight; empty if nothing is."""
        return self.in_flight.check()

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        return {
            "popMessages": str(self.pop.message_count),
            "popAcked": str(self.acks.ack_count),
            "popAckedUnknown": str(self.acks.unknown_count),
            "popRevived": str(self.reviver.revived_count),
            "popReviveFailedPuts": str(self.reviver.failed_count),
            "popInFlight": str(self.in_flight.count),
            "popJournalBytes": str(self.journal.file_bytes),
        }
