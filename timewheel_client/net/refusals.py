"""Answers to a send after which certainly nothing was stored. After any other answer, it may have been.

Brokers of RocketMQ 4.9 check access before they do anything else. They refuse with SYSTEM_ERROR and the text of a Java
exception, which says as much as the NO_PERMISSION of later ones.
"""

from __future__ import annotations

from remoting.codes import ResponseCode

__all__ = ["is_of_the_message", "refusal_of"]

_CERTAIN = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)
_ACL_REFUSAL = "org.apache.rocketmq.acl.common.AclException"
_NO_RIGHT = "No default permission"
_OF_THE_MESSAGE = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST})
_TOPIC_FORBIDDEN = ("Sending message to topic[", "the topic[")


def refusal_of(code: int, remark: str | None) -> int | None:
    """Return the code of a refusal, or None if the answer does not say whether the message was stored.

    NO_PERMISSION: the account is known, and may not do it. SYSTEM_ERROR: the account itself is not accepted.

    >>> refusal_of(1, "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T") == 16
    True
    >>> refusal_of(1, "store putMessage return null") is None
    True
    """
    if code in _CERTAIN:
        return code
    if code == ResponseCode.SYSTEM_ERROR and remark is not None and remark.startswith(_ACL_REFUSAL):
        return ResponseCode.NO_PERMISSION if _NO_RIGHT in remark else code
    return None


def is_of_the_message(code: int, remark: str | None) -> bool:
    """True if a refusal is the fault of the message or its topic, so that no account could send it.

    NO_PERMISSION has many causes: brokers 5.x, and ours, answer with it also to a wrong key or a missing right, and
    while the broker itself takes no writes. That changes, and the same message is taken then.

    >>> is_of_the_message(16, "the topic[T] sending message is forbidden"), is_of_the_message(17, None)
    (True, True)
    >>> is_of_the_message(16, "User:a has no permission to access Topic:T from 10.0.0.1, no matched policies.")
    False
    """
    if code == ResponseCode.NO_PERMISSION:
        return (remark or "").startswith(_TOPIC_FORBIDDEN)
    return code in _OF_THE_MESSAGE
