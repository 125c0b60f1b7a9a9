"""Makes fsspec's WebHDFS fit to count by: its requests end, and an answer that is not the file's bytes is an error.

fsspec waits for ever for an answer. It takes whatever a data node says for bytes of the file: a refusal, the page of a
proxy that wants a login, and too few bytes, which look like the end of the file.
"""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = ["check_answers", "rename_over"]

_SILENT_S_MAX = 60.0
"""Seconds that a name node or data node may take to connect, and to send the next bytes."""
_WHOLE, _GONE = 200, 404
"""Status of an answer that has the file's bytes, and of one that says that the file was deleted meanwhile."""


def check_answers(system: Any) -> None:
    """Let a file system of fsspec's WebHDFS check its answers. Done twice, it is done once."""
    session = system.session
    if not isinstance(session.request, partial):  # fsspec gives the same object again
        session.request = partial(session.request, timeout=_SILENT_S_MAX)
        system._call = partial(_called, system, system._call)


def _called(system: Any, call: Any, operation: str, *words: Any, **more: Any) -> Any:
    """The answer to a request; to ``OPEN`` that of the data node, which has the bytes that were asked for.

    Raises FileNotFoundError if the file is gone, OSError if the bytes are not, and the errors of the request.
    """
    answer = call(operation, *words, **more)
    if operation != "OPEN":
        return answer
    if "Location" in answer.headers:
        answer = system.session.get(system._apply_proxy(answer.headers["Location"]))
        if answer.status_code == _GONE:
            raise FileNotFoundError(f"{_GONE}: the file is gone")
        answer.raise_for_status()
    found, wanted = len(answer.content), more["length"]
    if answer.status_code != _WHOLE or found != wanted:
        kind = answer.headers.get("Content-Type", "no type")
        raise OSError(
            f"{wanted:,} bytes at {more['offset']:,} were asked for, and {found:,} came ({kind}, status "
            f"{answer.status_code}): the answer is not the file's"
        )
    answer.headers.pop("Location", None)  # fsspec would follow it, and not check what comes
    return answer


def rename_over(system: Any, path: str, target: str) -> None:
    """Rename a file; one with the name of ``target`` is replaced at this moment. Raises the errors of the request."""
    place = system._strip_protocol(target)
    system._call("RENAME", method="put", path=path, destination=place, renameoptions="OVERWRITE")
