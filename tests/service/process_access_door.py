"""What an account does through the door of an instance, before brokers with access control: all but plain sends.

Batches, with a due time in one of the messages and without; transactions that are committed and rolled back, and one
with a due time, which is refused; a message that a consumer sends back. Bytes pass as they are, so the account's own
signature is what the brokers look at.
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.json_dialect import loads
from tests.service.process_cluster import NUMBER, PATIENCE_MS, now_ms
from timewheel_client import BatchMessage, ClientConnection, Producer
from timewheel_client.net.credentials import Credentials
from timewheel_client.values.routes import route_of

__all__ = ["ARRIVE", "NEVER", "READERS", "RETRY", "SENT_BACK", "use_the_door"]

READERS = "readers"
RETRY = f"%RETRY%{READERS}"
SENT_BACK = 206
ARRIVE = frozenset({200, 201, 202, 203, 204, SENT_BACK})
"""Numbers of the messages that must stand in ``orders`` once."""
NEVER = frozenset({205, 207})
_PREPARED, _COMMIT, _ROLLBACK = 4, 8, 12
_GROUP = "producers"


async def use_the_door(front: str, access_key: str, secret_key: str) -> None:
    """Do all of it. The account needs PUB and SUB of ``orders``, and SUB of the group `READERS`."""
    async with Producer(front, access_key=access_key, secret_key=secret_key) as producer:
        await producer.send_batch("orders", [_message(200), _message(201)])
        await producer.send_batch("orders", [_message(202, now_ms() + 500), _message(203)])
        sent = await producer.send("orders", b"body", properties={NUMBER: str(SENT_BACK)})
    connection = await ClientConnection.open(
        await _door(front), credentials=Credentials(access_key, secret_key), timeout_ms=PATIENCE_MS
    )
    try:
        for number, end in ((204, _COMMIT), (205, _ROLLBACK)):
            half = await _half(connection, number)
            assert half.code == ResponseCode.SUCCESS, half.remark
            reply = await _ask(connection, RequestCode.END_TRANSACTION, _end_of(half, number, end))
            assert reply.code == ResponseCode.SUCCESS, reply.remark
        refused = await _half(connection, 207, f"__STARTDELIVERTIME\x01{now_ms() + 500}\x02")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "TW_DELIVER_MS" in (refused.remark or ""), refused
        back = {
            "group": READERS,
            "offset": str(_log_offset(sent.offset_message_id)),
            "delayLevel": "1",
            "originMsgId": sent.message_id,
            "originTopic": "orders",
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }
        reply = await _ask(connection, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
    finally:
        await connection.close()


def _message(number: int, at: int | None = None) -> BatchMessage:
    return BatchMessage(b"body %d" % number, properties={NUMBER: str(number)}, at=at)


def _log_offset(message_id: str) -> int:
    return int(message_id[-16:], 16)


async def _door(front: str) -> str:
    """The door of the only broker."""
    connection = await ClientConnection.open(front, timeout_ms=PATIENCE_MS)
    try:
        reply = await _ask(connection, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        route = route_of("orders", loads(reply.body))
        return route.brokers[route.write_queues[0].broker_name][0]
    finally:
        await connection.close()


async def _ask(connection: ClientConnection, code: int, ext: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
    return await connection.request(code, ext, body, timeout_ms=PATIENCE_MS)


async def _half(connection: ClientConnection, number: int, more: str = "") -> RemotingCommand:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{_GROUP}\x02UNIQ_KEY\x01{number:032X}\x02{NUMBER}\x01{number}\x02{more}"
    header = SendHeader(_GROUP, "orders", sys_flag=_PREPARED, born_ms=now_ms(), properties=text)
    return await _ask(connection, RequestCode.SEND_MESSAGE_V2, header.to_v2(), b"body %d" % number)


def _end_of(half: RemotingCommand, number: int, end: int) -> dict[str, str]:
    return {
        "topic": "orders",
        "producerGroup": _GROUP,
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(_log_offset(half.ext["msgId"])),
        "commitOrRollback": str(end),
        "fromTransactionCheck": "false",
        "msgId": f"{number:032X}",
        "transactionId": f"{number:032X}",
    }
