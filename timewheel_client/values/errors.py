"""Every error of the client; each is also the builtin error that a caller would expect.

ClientError
├── ConnectionFailedError   (ConnectionError)  could not connect, or the connection broke
├── RequestTimeoutError     (TimeoutError)     no reply in time; the request may have taken effect
├── NoRouteError            (LookupError)      no name server knows a broker for the topic
├── NotWrittenError                            it was to be written in time only, and was not
├── ClosedError                                used before it was started or after it was closed
└── BrokerError                                a reply with an error code
    └── SendError                              the same for a send
"""

from __future__ import annotations

from remoting.codes import ResponseCode
from remoting.printable import printable

__all__ = [
    "BrokerError",
    "ClientError",
    "ClosedError",
    "ConnectionFailedError",
    "NoRouteError",
    "NotWrittenError",
    "RequestTimeoutError",
    "SendError",
]


class ClientError(Exception):
    """Base of the client's errors."""


class ConnectionFailedError(ClientError, ConnectionError):
    """A peer could not be reached, or the connection to it broke while a reply was awaited."""


class RequestTimeoutError(ClientError, TimeoutError):
    """No reply came in time. The broker may have carried out the request."""


class NoRouteError(ClientError, LookupError):
    """No name server knows a broker that serves the topic."""


class NotWrittenError(ClientError):
    """A request was to be written only while its sender may, and nothing of it was written."""


class ClosedError(ClientError):
    """The producer or consumer is not open."""


class BrokerError(ClientError):
    """A peer answered with an error.

    ``code`` is the response code (int), ``name`` its name, ``remark`` the peer's text as it came, ``address`` its
    ``HOST:PORT``. The error's own text has no control characters in it.
    """

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        super().__init__(printable(f"{self.name} ({code}) from {address}: {self.remark or 'no remark'}"))

    @property
    def name(self) -> str:
        """The code's name, as Apache has it; ``CODE_n`` for one that is not known."""
        try:
            return ResponseCode(self.code).name
        except ValueError:
            return f"CODE_{self.code}"


class SendError(BrokerError):
    """A broker refused to store a message."""
