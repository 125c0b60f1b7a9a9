"""Response codes and remarks for messages that were not stored: Apache's codes and sentences.

A remark of the store or of a plug-in, which names the wrong value, precedes Apache's sentence.
"""

from __future__ import annotations

from remoting.codes import ResponseCode
from store.put.plugin_api import PutStatus

__all__ = ["failure"]

_ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit {limit}B, "
    "msg properties length limit 32KB."
)
_FAILURES: dict[PutStatus, tuple[ResponseCode, str]] = {
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, ""),
    PutStatus.NOT_DUE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the clock was set back to before the message's time while it was being stored: send it again",
    ),
    PutStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
        "message store has been shut down, etc.",
    ),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.MESSAGE_ILLEGAL: (ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL),
    PutStatus.OS_PAGE_CACHE_BUSY: (
        ResponseCode.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: (ResponseCode.SYSTEM_ERROR, "timer message is under flow control"),
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: (ResponseCode.MESSAGE_ILLEGAL, "timer message illegal"),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, timerWheelEnable is false",
    ),
    PutStatus.TOPIC_NOT_EXIST: (ResponseCode.TOPIC_NOT_EXIST, "the topic does not exist"),
    PutStatus.NO_PERMISSION: (ResponseCode.NO_PERMISSION, "the topic may not be written"),
}


def failure(status: PutStatus, remark: str, max_message_bytes: int) -> tuple[ResponseCode, str]:
    """The response code and the remark for a message that was not stored."""
    code, text = _FAILURES.get(status, (ResponseCode.SYSTEM_ERROR, status.name))
    text = text.format(limit=max_message_bytes)
    if remark and text:
        return code, f"{remark}; {text}"
    return code, remark or text
