"""`Answers`: holds replies about pops back until the journal of pops has their changes.

A broker that is killed after a reply must still know what the reply said. So a reply whose request has changed
something waits for the end of its turn. All changes of the turn are then written at once. If that fails, the client
gets an error instead. The change itself stays: an acknowledged message is not handed out again while this process
lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.net.channel import Channel
from broker.net.processor import Handler
from remoting.codes import FLAG_ONEWAY, ResponseCode
from remoting.command import RemotingCommand, encode_command
from store.disk.errors import StoreError
from store.pop.journal import PopJournal

__all__ = ["Answers"]

_LOG = logging.getLogger(__name__)

_BYTES_MAX = 1 << 20
"""Bytes of waiting replies beyond which the journal is written at once, before the turn ends."""


class Answers:
    """The replies that wait. Network loop only.

    Args:
        journal: The journal of pops.
        schedule: Makes the turn end soon.
    """

    def __init__(self, journal: PopJournal, schedule: Callable[[], object]) -> None:
        self._journal = journal
        self._schedule = schedule
        self._waiting: list[tuple[Channel, RemotingCommand | None, bytes]] = []
        self._bytes = 0

    def after(self, handler: Callable[[Channel, RemotingCommand, int], RemotingCommand]) -> Handler:
        """Wrap a handler so that its reply waits for the journal."""

        def handle(channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
            reply = handler(channel, command, now_ms)
            if command.flag & FLAG_ONEWAY:
                return None
            if not self._journal.pending and not self._waiting:
                return reply  # also where another thread has written it: answers keep the order of their requests
            self.send(channel, command, reply)
            return None

        return handle

    def send(self, channel: Channel, command: RemotingCommand, reply: RemotingCommand) -> None:
        """Send a reply once the journal has all changes made so far; at once if it has them already."""
        frame = encode_command(reply)
        if not self._journal.pending and not self._waiting:
            channel.send_at_once(frame)
            return
        if not self._waiting:
            self._schedule()
        # An error says that nothing was changed, whatever becomes of the journal.
        self._waiting.append((channel, command if reply.code == ResponseCode.SUCCESS else None, frame))
        self._bytes += len(frame)
        if self._bytes > _BYTES_MAX:
            self.settle()

    @property
    def refusal(self) -> str:
        """Why nothing may be handed out now; empty if it may."""
        return self._journal.failure

    def settle(self) -> None:
        """Write the changes made so far, then send the replies that wait for them."""
        if not self._journal.pending and not self._waiting:
            return
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        was_failing = bool(self._journal.failure)
        try:
            self._journal.commit()
        except StoreError as error:
            if not was_failing:
                _LOG.error("the journal of pops cannot be written, and nothing is popped until it can be: %s", error)
            remark = f"a restart may undo this, because the journal of pops cannot be written: {error}"
            for channel, command, frame in waiting:
                if command is not None:
                    frame = encode_command(command.reply(ResponseCode.SYSTEM_ERROR, remark))
                channel.send(frame)
            return
        if was_failing:
            _LOG.warning("the journal of pops can be written again")
        for channel, _, frame in waiting:
            channel.send_at_once(frame)
