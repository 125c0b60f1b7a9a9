"""The accounts and rights of a ``plain_acl.yml``, with the keys and the meaning of Apache's ACL 1.0."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.access.acl_file import AclFileError, quoted, read_acl_file
from broker.tables.topic_names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TIMER_TOPIC,
)

__all__ = ["PENDING", "PUB", "SUB", "Account", "AclRules", "address_pattern"]

PUB, SUB = 4, 8
PENDING = 16
"""The right to see and to change what is pending of a topic; RocketMQ does not know it."""
_DENY = 1
_RIGHTS = {"PUB": PUB, "SUB": SUB, "PENDING": PENDING}
_EVERYBODYS = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC"))
_KEY_CHARS_MIN = 7
_TOP_KEYS = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}
_ACCOUNT_KEYS = {
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
    *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
}
_OCTET = r"(?:\*|\d{1,3}(?:-\d{1,3})?)"

Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Account:
    """One account; ``perms`` are its rights by topic; a group appears as its retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    default_topic_perm: int = _DENY
    default_group_perm: int = _DENY
    perms: dict[str, int] = field(default_factory=dict)
    is_white: Matches = lambda _: False

    def refusal(self, resource: str, needed: int) -> str | None:
        """Return why the account may not, or None if it may."""
        group = resource.startswith(RETRY_PREFIX)
        shown = f"group {resource.removeprefix(RETRY_PREFIX):.300}" if group else f"topic {resource:.300}"
        owned = self.perms.get(resource)
        if owned is None and resource.startswith(DLQ_PREFIX):
            # A group's dead letters belong to the group, unless ``topicPerms`` names them.
            group, owned = True, self.perms.get(RETRY_PREFIX + resource.removeprefix(DLQ_PREFIX))
        if owned is None:
            default = self.default_group_perm if group else self.default_topic_perm
            if not group and needed == SUB and _is_everybodys(resource):
                default = _DENY
            return None if default & needed else f"No default permission for {shown}"
        return None if owned & needed else f"No permission for {shown}"


def _is_everybodys(topic: str) -> bool:
    """True if a topic holds messages of other clients: no default permits it, only its name in ``topicPerms``."""
    return topic in _EVERYBODYS or topic.lower().startswith(SYSTEM_PREFIX) or topic.endswith("_REPLY_TOPIC")


class AclRules:
    """All accounts by access key, and the addresses that need no account."""

    __slots__ = ("accounts", "white")

    def __init__(self, accounts: dict[str, Account], white: Sequence[Matches] = ()) -> None:
        self.accounts = accounts
        self.white = tuple(white)

    @classmethod
    def read(cls, data: bytes) -> AclRules:
        """Read a file; raises AclFileError, which names the account and the value."""
        document = read_acl_file(data)
        _known(document, _TOP_KEYS, "the file")
        white = [address_pattern(text) for text in _texts(document, "globalWhiteRemoteAddresses", "the file")]
        accounts: dict[str, Account] = {}
        for entry in document.get("accounts") or ():
            if not isinstance(entry, dict):
                raise AclFileError(f"accounts: expected keys and values, found {quoted(entry)}")
            account = _account(entry)
            if account.access_key in accounts:
                raise AclFileError(f"account {account.access_key} is listed twice")
            accounts[account.access_key] = account
        if not accounts and not white:
            raise AclFileError("it has neither accounts nor globalWhiteRemoteAddresses: every request would be refused")
        return cls(accounts, white)


def _account(entry: dict[str, Any]) -> Account:
    access_key, secret_key = entry.get("accessKey"), entry.get("secretKey")
    where = "an account without accessKey" if access_key is None else f"account {access_key}"
    _known(entry, _ACCOUNT_KEYS, where)
    for name, key in (("accessKey", access_key), ("secretKey", secret_key)):
        if not isinstance(key, str) or len(key) < _KEY_CHARS_MIN:
            raise AclFileError(f"{where}: {name} must be a text of {_KEY_CHARS_MIN} characters at least")
    admin = entry.get("admin") or "false"
    if admin not in ("true", "false"):
        raise AclFileError(f"{where}: admin is true or false, found {quoted(admin)}")
    perms = dict(_perm(text, where) for text in _texts(entry, "topicPerms", where))
    for text in _texts(entry, "groupPerms", where):
        group, perm = _perm(text, where)
        perms[RETRY_PREFIX + group] = perm
    white = entry.get("whiteRemoteAddress")
    if white is not None and not isinstance(white, str):
        raise AclFileError(f"{where}: whiteRemoteAddress is one text, found {quoted(white)}")
    return Account(
        str(access_key),
        str(secret_key),
        admin == "true",
        _permission(entry.get("defaultTopicPerm"), where),
        _permission(entry.get("defaultGroupPerm"), where),
        perms,
        address_pattern(white) if white else lambda _: False,
    )


def _known(entry: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(entry.keys() - known)
    if unknown:
        raise AclFileError(f"{where}: unknown key {unknown[0]}; known keys: {', '.join(sorted(known))}")


def _texts(entry: dict[str, Any], key: str, where: str) -> list[str]:
    values = entry.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise AclFileError(f"{where}: {key} is a list of texts, found {quoted(values)}")
    return values


def _perm(text: str, where: str) -> tuple[str, int]:
    name, separator, permission = text.partition("=")
    if not separator or not name.strip():
        raise AclFileError(f"{where}: expected NAME=PERMISSION, found {quoted(text)}")
    return name.strip(), _permission(permission, where)


def _permission(text: object, where: str) -> int:
    if text is None:
        return _DENY
    words = str(text).strip().split("|")
    if words == ["DENY"]:
        return _DENY
    if len(set(words)) < len(words) or not all(word in _RIGHTS for word in words):
        known = "PENDING (alone or with others), DENY, PUB, SUB or PUB|SUB"
        raise AclFileError(f"{where}: a permission is {known}, found {quoted(text)}")
    return sum(_RIGHTS[word] for word in words)


def address_pattern(text: str) -> Matches:
    """Read an IPv4 pattern: ``*``, ``10.1.2.3``, ``10.1.2.*``, ``10.1.2-9.*``, ``10.1.2.{3,4}``, or several (commas).

    >>> address_pattern("192.168.1-2.*")("192.168.2.77"), address_pattern("10.0.0.{3,4}")("10.0.0.5")
    (True, False)

    Raises AclFileError if it is no address.
    """
    text = text.strip()
    listed = re.fullmatch(r"((?:\d{1,3}\.){3})\{([0-9, ]+)\}", text)
    if listed:
        text = ",".join(listed[1] + last.strip() for last in listed[2].split(","))
    if "," in text:
        parts = [address_pattern(part) for part in text.split(",")]
        return lambda address: any(part(address) for part in parts)
    if text == "*":
        return lambda _: True
    if not re.fullmatch(rf"{_OCTET}(?:\.{_OCTET}){{3}}", text):
        raise AclFileError(f"an address is like 10.1.2.3, 10.1.2.*, 10.1.2-9.* or 10.1.2.{{3,4}}, found {text!r:.80}")
    bounds = []
    for part in text.split("."):
        low, _, high = ("0", "", "255") if part == "*" else part.partition("-")
        bounds.append((int(low), int(high or low)))
        if not bounds[-1][0] <= bounds[-1][1] <= 255:
            raise AclFileError(f"an address has numbers up to 255, found {text!r:.80}")

    def matches(address: str) -> bool:
        numbers = address.split(".")
        return len(numbers) == 4 and all(
            number.isdecimal() and low <= int(number) <= high
            for number, (low, high) in zip(numbers, bounds, strict=True)
        )

    return matches
