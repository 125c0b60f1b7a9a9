"""RECALL_MESSAGE (370): a sender takes a timed message back.

The handle identifies the message at the broker that holds it, so only that broker is asked. Its answers:

=========================  ============================================================================================
0 SUCCESS                  it will not be delivered (the remark tells whether it had been recalled before)
604 ILLEGAL_OPERATION      it was delivered, or no such message is known there: the remark says which
anything else              an error: recalls are off (16), the topic is gone (17), …
no answer                  asked again while the time lasts: a second recall of a message does nothing
=========================  ============================================================================================
"""

from __future__ import annotations

import asyncio

from remoting.codes import RequestCode, ResponseCode
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.tries import MAX_PAUSE_MS, NOT_NOW_CODES, RETRY_PAUSE_MS, Tries
from timewheel_client.values.client_values import RecallResult, SendResult
from timewheel_client.values.errors import BrokerError, ConnectionFailedError, NoRouteError, RequestTimeoutError

__all__ = ["recall_message"]

ATTEMPT_TIMEOUT_MS = 3_000


async def recall_message(core: ClientCore, tries: Tries, group: str, sent: SendResult, timeout_ms: int) -> RecallResult:
    """Ask the broker of a message to take it back; see `Producer.recall`.

    Raises TypeError for another object, ValueError if the message has no recall handle.
    """
    if not isinstance(sent, SendResult):
        raise TypeError(f"recall needs the SendResult of a send, found {sent!r:.100} ({type(sent).__name__})")
    if not sent.recall_handle:
        raise ValueError(
            f"message {sent.message_id} has no recall handle: only timed messages have one, those of send_batch have "
            "none, and the broker must be set up with recallMessageEnable=true"
        )
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_ms / 1000
    pause_s = RETRY_PAUSE_MS / 1000
    while True:
        try:
            return await _ask(core, tries, group, sent, deadline)
        except (ConnectionFailedError, RequestTimeoutError, NoRouteError):
            if deadline - clock() <= pause_s:
                raise
        except BrokerError as error:
            if error.code not in NOT_NOW_CODES or deadline - clock() <= pause_s:
                raise
        core.refresh_soon(sent.queue.topic)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_MS / 1000)


async def _ask(core: ClientCore, tries: Tries, group: str, sent: SendResult, deadline: float) -> RecallResult:
    topic, broker = sent.queue.topic, sent.queue.broker_name
    route = await tries.find_route(topic, deadline)
    address = route.address(broker)
    if address is None:
        raise NoRouteError(f"no address for broker {broker} of topic {topic}")
    ext = {"producerGroup": group, "topic": topic, "recallHandle": sent.recall_handle, "bname": broker}
    left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
    reply = await core.connections.request(
        address, RequestCode.RECALL_MESSAGE, ext, timeout_ms=max(1, min(ATTEMPT_TIMEOUT_MS, left_ms))
    )
    if reply.code == ResponseCode.SUCCESS:
        return RecallResult(True, reply.ext.get("msgId", ""), reply.remark or "")
    if reply.code == ResponseCode.ILLEGAL_OPERATION:
        return RecallResult(False, "", reply.remark or "")
    raise BrokerError(reply.code, reply.remark, address)
