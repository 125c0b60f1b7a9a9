"""Flow control: sends that waited too long before they could be read are refused, in Apache's words.

Apache's broker has a queue in front of its send threads, and a timer that removes requests older than
``waitTimeMillsInSendQueue`` from it. This broker has no such queue: requests that it cannot read yet stay in the
kernel's socket buffers, where they cost no memory here and slow the sender down. When more connections are ready than
one turn of the network loop can read (see `broker.net.server`), their sends wait. Their senders may have given up by
then, and storing the repeated sends as well would only make the queue longer. A refusal costs less than an append, so
the loop catches up.

"period in queue" is the time for which the connection was known to be ready, a lower bound; "size of queue" is the
number of connections that wait to be read.
"""

from __future__ import annotations

from broker.net.channel import Channel
from broker.net.dispatcher import Dispatcher
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand

__all__ = ["FlowControl"]

_SENDS = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
    )
)
"""The request codes that go through Apache's send queue."""


class FlowControl:
    """Handles requests that waited: dispatches those that may be served and refuses the others.

    Args:
        dispatcher: Serves, and answers.
        patience_ms: Longest wait of a send that is served (``waitTimeMillsInSendQueue``).
    """

    def __init__(self, dispatcher: Dispatcher, patience_ms: int) -> None:
        self._dispatcher = dispatcher
        self._patience_ms = patience_ms
        self.refused_count = 0
        """Sends refused since the start."""

    def late(self, channel: Channel, commands: list[RemotingCommand], waited_ms: int, waiting: int) -> None:
        """Handle the requests of a connection that had been ready for ``waited_ms``."""
        dispatcher = self._dispatcher
        if waited_ms <= self._patience_ms:
            dispatcher.received(channel, commands)
            return
        remark = (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {waiting}"
        )
        for command in commands:
            # The codes of replies are other numbers: 10 is a send, and as a reply FLUSH_DISK_TIMEOUT.
            if command.code in _SENDS and not command.is_response:
                self.refused_count += 1
                dispatcher.answer(channel, command, command.reply(ResponseCode.SYSTEM_BUSY, remark))
            else:
                dispatcher.received(channel, (command,))
