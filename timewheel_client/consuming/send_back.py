"""Sends a message back: the group gets it again later, or it goes to the dead-letter topic.

The broker copies the message from its own log (CONSUMER_SEND_MSG_BACK). If it cannot, because the record has expired or
is not its own, the client sends a copy to the group's retry topic instead, as Apache's clients do. The broker moves a
copy with too many retries to the dead letters; that is how a message gets there at once.
"""

from __future__ import annotations

from remoting.codes import RequestCode, ResponseCode
from remoting.messages.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    STARTDELIVERTIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    format_properties,
)
from timewheel_client.consuming.received import ReceivedMessage
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.tries import STORED, send_header
from timewheel_client.values.errors import BrokerError, ConnectionFailedError, NoRouteError, SendError
from timewheel_client.values.log import log

__all__ = ["MOST_RECONSUME_TIMES", "send_back"]


MOST_RECONSUME_TIMES = 16
# A copy must not be a half message, and its delay is that of the retry.
_LEFT_OUT = (TRAN_MSG, STARTDELIVERTIME, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC, DELAY)


async def send_back(core: ClientCore, group: str, message: ReceivedMessage, delay_level: int) -> None:
    """Send a message back with a delay level, one chosen by the broker (0), or to the dead letters (-1).

    Raises NoRouteError if the broker has no address.
    """
    core.require_open()
    route = core.cached_route(message.queue.topic)
    address = route.address(message.queue.broker_name) if route else None
    if address is None:
        raise NoRouteError(f"no address for broker {message.queue.broker_name}")
    ext = {
        "offset": str(message.log_offset),
        "group": group,
        "delayLevel": str(delay_level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "maxReconsumeTimes": str(MOST_RECONSUME_TIMES),
    }
    try:
        await core.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    except BrokerError as error:
        log.info("sending back %s: %s; a copy is sent instead", message.message_id, error)
        await _send_copy(core, group, message, delay_level)


async def _send_copy(core: ClientCore, group: str, message: ReceivedMessage, delay_level: int) -> None:
    properties = {name: value for name, value in message.properties.items() if name not in _LEFT_OUT}
    properties[RETRY_TOPIC] = message.topic
    properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
    times = message.reconsume_times + 1
    if delay_level < 0:
        times = max(times, MOST_RECONSUME_TIMES + 1)
    else:
        properties[DELAY] = str(delay_level or 3 + message.reconsume_times)
    properties[RECONSUME_TIME] = str(times)
    properties[MAX_RECONSUME_TIMES] = str(MOST_RECONSUME_TIMES)
    topic = f"%RETRY%{group}"
    route = await core.route_to_write(topic)
    address = route.address(message.queue.broker_name) or min(route.addresses(), default=None)
    if address is None:
        raise NoRouteError(f"no broker of topic {topic}")
    ext = send_header(group, topic, format_properties(properties), flag=message.flag, reconsume_times=times)
    body, sys_flag = message.packed
    ext |= {"l": str(MOST_RECONSUME_TIMES), "f": str(sys_flag)}
    try:
        reply = await core.connections.request(address, RequestCode.SEND_MESSAGE_V2, ext, body)
    except ConnectionFailedError:
        core.refresh_soon(topic)
        raise
    if reply.code not in STORED:
        raise SendError(reply.code, reply.remark, address)
    if reply.code != ResponseCode.SUCCESS:
        log.warning("the copy of %s is stored with %s", message.message_id, STORED[ResponseCode(reply.code)])
