"""The reply to a send, the most frequent of all replies: a template with five holes."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import orjson

from remoting.codes import FLAG_RESPONSE, SERIALIZE_JSON, VERSION
from remoting.command import REGION, RemotingCommand, encode_command

__all__ = ["encode_send_reply", "send_reply_encoder"]

_WORDS = Struct(">II")

# One template with five holes; everything else of a send reply never changes. (Bytes formatting is the quickest
# way here: 280 ns against 330 ns for an f-string and 1,000 ns for a dictionary and orjson.)
_SEND_REPLY_JSON = (
    b'{"code":0,"extFields":{"queueId":"%%d","msgId":"%%b","queueOffset":"%%d","transactionId":%%b,'
    b'"MSG_REGION":"%b","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}'
) % (REGION.encode(), VERSION)


def encode_send_reply(
    serialize_type: int, opaque: int, message_id: str, queue_id: int, queue_offset: int, transaction_id: str
) -> bytes:
    """Write the whole frame of a successful send's reply.

    The same as `encode_command` of a reply with msgId, queueId, queueOffset, transactionId, MSG_REGION and
    TRACE_ON, in a third of its time. ``message_id`` is hex (a batch's: joined by commas), ``transaction_id`` any text.
    """
    if serialize_type == SERIALIZE_JSON:
        header = _SEND_REPLY_JSON % (
            queue_id,
            message_id.encode(),
            queue_offset,
            orjson.dumps(transaction_id),
            opaque,
        )
        length = len(header)
        return _WORDS.pack(length + 4, length) + header
    ext = {
        "queueId": str(queue_id),
        "msgId": message_id,
        "queueOffset": str(queue_offset),
        "transactionId": transaction_id,
        "MSG_REGION": REGION,
        "TRACE_ON": "true",
    }
    return encode_command(RemotingCommand(0, opaque, FLAG_RESPONSE, ext=ext, serialize_type=serialize_type))


def send_reply_encoder(id_prefix: str) -> Callable[[int, int, int, int, int, str], bytes]:
    """Make a function that writes send replies of one broker, whose message ids all begin with ``id_prefix``.

    ``(serialize_type, opaque, offset, queue_id, queue_offset, transaction_id)``: the same frame as `encode_send_reply`
    writes for the message id ``id_prefix`` + 16 hex digits of ``offset``, in two thirds of its time.
    """
    template = _SEND_REPLY_JSON.replace(b'"msgId":"%b"', b'"msgId":"' + id_prefix.encode() + b'%016X"')
    pack = _WORDS.pack
    quoted = orjson.dumps

    def encode(
        serialize_type: int, opaque: int, offset: int, queue_id: int, queue_offset: int, transaction_id: str
    ) -> bytes:
        if serialize_type != SERIALIZE_JSON:
            message_id = f"{id_prefix}{offset:016X}"
            return encode_send_reply(serialize_type, opaque, message_id, queue_id, queue_offset, transaction_id)
        header = template % (queue_id, offset, queue_offset, quoted(transaction_id), opaque)
        length = len(header)
        return pack(length + 4, length) + header

    return encode
