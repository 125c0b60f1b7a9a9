"""`Replies`: answers the requests of a turn when the results of their messages are known."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from broker.turns.put_request import Entry, PutRequest, PutSend
from broker.turns.put_status import failure
from remoting.codes import FLAG_RESPONSE, ResponseCode
from remoting.command import REGION, RemotingCommand, encode_command
from remoting.messages.message import message_ids
from remoting.send_reply import send_reply_encoder
from store.put.plugin_api import PutResult, PutStatus

__all__ = ["Replies"]

_LOG = logging.getLogger(__name__)
# `Final`: compiled, a name that never changes is not looked up for each message.
_PUT_OK: Final = PutStatus.PUT_OK


class Replies:
    """Makes and sends replies.

    Args:
        store_host: The broker's address as records hold it: the first part of message ids.
        region, trace_on: MSG_REGION and TRACE_ON of replies.
        max_message_bytes: The longest body, for remarks.
    """

    def __init__(self, store_host: bytes, region: str, trace_on: bool, max_message_bytes: int) -> None:
        self.store_host = store_host
        """The broker's address as records hold it."""
        self._id_prefix = store_host.hex().upper()
        self._encode_reply = send_reply_encoder(self._id_prefix)
        self._usual_reply = region == REGION and trace_on
        self._max_message_bytes = max_message_bytes
        self.reply_ext = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}

    def refusal(self, command: RemotingCommand, status: PutStatus, remark: str) -> RemotingCommand:
        """Make the reply to a send that was not stored."""
        code, text = failure(status, remark, self._max_message_bytes)
        return command.reply(code, text, dict(self.reply_ext))

    def stored(
        self,
        serialize_type: int,
        opaque: int,
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str | None,
        flushed: bool = True,
    ) -> RemotingCommand:
        """Make the reply to a send that was stored; a batch's ``message_ids`` are joined by commas."""
        ext = {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(queue_offset), **self.reply_ext}
        if unique_key is not None:
            ext["transactionId"] = unique_key
        code = ResponseCode.SUCCESS if flushed else ResponseCode.FLUSH_DISK_TIMEOUT
        return RemotingCommand(code, opaque, FLAG_RESPONSE, ext=ext, serialize_type=serialize_type)

    def message_id(self, offset: int) -> str:
        """Write the id of a message at a position, in the CommitLog or virtual."""
        return f"{self._id_prefix}{offset:016X}"

    def message_ids(self, offsets: Sequence[int]) -> str:
        """Write the ids of a batch's messages, joined by commas."""
        return message_ids(self.store_host, offsets)

    def answer(self, entries: Sequence[Entry], results: Sequence[PutResult], flushed: bool) -> None:
        """Answer requests; ``results`` are those of the puts among them, in their order."""
        encode = self._encode_reply
        usual = flushed and self._usual_reply
        number = 0
        for entry in entries:
            result: PutResult | None = None
            if entry.put is not None:
                result = results[number]
                number += 1
            if isinstance(entry, PutSend):
                offset = queue_offset = 0
                if result is None:
                    if entry.held is not None:
                        offset = entry.held.offset
                else:
                    if result.status is not _PUT_OK:
                        self._fail(entry, result.status, result.remark)
                        continue
                    offset, queue_offset = result.offset, result.queue_offset
                channel, kind, opaque = entry.channel, entry.serialize_type, entry.opaque
                if channel is None:
                    continue
                if usual:
                    channel.send(encode(kind, opaque, offset, entry.queue_id, queue_offset, entry.unique_key))
                    continue
                ids = self.message_id(offset)
                reply = self.stored(kind, opaque, ids, entry.queue_id, queue_offset, entry.unique_key, flushed)
                channel.send(encode_command(reply))
            elif isinstance(entry, PutRequest):
                self._answer_request(entry, entry.results(result, flushed))

    def answer_failed(self, entries: Sequence[Entry], status: PutStatus, remark: str) -> None:
        """Answer requests whose messages were not stored."""
        for entry in entries:
            if isinstance(entry, PutRequest):
                self._answer_request(entry, [PutResult(status, remark=remark)] * len(entry.parts))
            else:
                self._fail(entry, status, remark)

    def _answer_request(self, request: PutRequest, results: list[PutResult]) -> None:
        """Answer one `PutRequest`. If its own rule fails, it alone gets an error: the others are answered as usual."""
        channel = request.channel
        try:
            reply = request.answer(results)
            frame = None if reply is None or channel is None else encode_command(reply)
        except Exception as error:
            _LOG.exception("a request's answer failed")
            text = f"{type(error).__name__}: {error!s:.300}"
            reply = RemotingCommand(
                ResponseCode.SYSTEM_ERROR,
                request.opaque,
                FLAG_RESPONSE,
                remark=text,
                serialize_type=request.serialize_type,
            )
            frame = encode_command(reply)
        if frame is not None and channel is not None:
            channel.send(frame)

    def _fail(self, entry: Entry, status: PutStatus, remark: str) -> None:
        if entry.channel is not None:
            code, text = failure(status, remark, self._max_message_bytes)
            reply = RemotingCommand(code, entry.opaque, FLAG_RESPONSE, remark=text, serialize_type=entry.serialize_type)
            reply.ext.update(self.reply_ext)
            entry.channel.send(encode_command(reply))
