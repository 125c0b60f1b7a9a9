"""The load generator and the measuring consumer: processes of their own, bare sockets, one epoll loop each.

`load` says what to send, `templates` writes one frame for a protocol, `ring` holds many of them ready and writes
only due times and numbers into them, `sender` keeps the connections busy, `receiver` takes what is delivered.
"""

from __future__ import annotations

__all__: list[str] = []
