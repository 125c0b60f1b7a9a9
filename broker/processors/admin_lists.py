"""Lists of topics and groups in administrators' requests: each entry is read and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from broker.tables import attributes
from broker.tables.groups import SubscriptionGroup
from broker.tables.topic_names import group_problem
from remoting.codes import ResponseCode
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_body

__all__ = ["JAVA_INT_END", "RefusedError", "checked", "full_of", "group_of", "groups_of", "listed"]

LIST_BYTES_MAX = 1 << 20
"""Most bytes of a list of topics or groups, some 5,000 of them: other requests wait while it is read."""
LIST_COUNT_MAX = 10_000
"""Most topics or groups in one request: other requests wait while they are added to the table."""
JAVA_INT_END = 1 << 31
"""Beyond Java's largest int. Apache's broker could not read a file with a larger number."""
_FIELD_BYTES_MAX = 4_096
_T = TypeVar("_T")


class RefusedError(Exception):
    """A request that is refused: response code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


def full_of(what: str, count: int, news: Collection[str], most: int) -> str:
    """Return why no more entries can be created; empty if there is room."""
    if not news or count + len(news) <= most:
        return ""
    return f"there are {count} {what}, and {len(news)} more would exceed the limit of {most}"


def listed(body: bytes, name: str) -> list[Any]:
    """Read a body that is an object with one list. Raises ProtocolError if it is not one, or is too long."""
    document = loads_body(body, LIST_BYTES_MAX)
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ProtocolError(f"{name} is not a list: {body[:200]!r}")
    if len(found) > LIST_COUNT_MAX:
        raise ProtocolError(f"{name} with {len(found)} entries, at most {LIST_COUNT_MAX} are taken")
    return found


def checked(work: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function on attributes; refuse the request if they are invalid. Raises RefusedError."""
    try:
        return work(*arguments)
    except attributes.RefusedAttributeError as error:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None


def groups_of(documents: list[Any], known: Callable[[str], Mapping[str, str] | None]) -> list[SubscriptionGroup]:
    """Read and check a list of groups; ``known`` returns the present attributes of a group. Any thread.

    Raises ProtocolError if a group cannot be read, RefusedError if it is not allowed.
    """
    groups = []
    for document in documents:
        if not isinstance(document, dict) or not isinstance(document.get("attributes") or {}, dict):
            raise ProtocolError(f"unreadable group configuration: {document!r:.200}")
        name = str(document.get("groupName") or "")
        problem = group_problem(name)
        if problem is not None:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, problem)
        before, changes = known(name), {key: str(value) for key, value in (document.get("attributes") or {}).items()}
        altered = checked(attributes.alter_group, before or {}, changes, before is None)
        groups.append(group_of(name, {**document, "attributes": altered}))
    return groups


def group_of(name: str, document: Mapping[str, Any]) -> SubscriptionGroup:
    """Read a group's configuration: missing fields get their default, unknown ones are dropped.

    Raises ProtocolError if a field is no number or too long.
    """
    defaults = SubscriptionGroup(name).fields
    fields: dict[str, Any] = {}
    for key, value in document.items():
        if value is None or key not in defaults:
            continue
        if isinstance(defaults[key], bool):
            value = value.lower() == "true" if isinstance(value, str) else bool(value)
        elif isinstance(defaults[key], int):
            try:
                value = int(value)
            except (TypeError, ValueError):
                raise ProtocolError(f"{key} of group {name} is not a number: {value!r:.100}") from None
            if not -JAVA_INT_END <= value < JAVA_INT_END:
                raise ProtocolError(f"{key} of group {name} is not an int32: {value}")
        elif len(dumps(value)) > _FIELD_BYTES_MAX:
            raise ProtocolError(f"{key} of group {name} has more than {_FIELD_BYTES_MAX} bytes")
        fields[key] = value
    return SubscriptionGroup(name, fields)
