"""The load generator and the measuring consumer: processes of their own, bare sockets, one epoll loop each.

`load` says what to send. `protocols` knows how one frame is written in each protocol (`rocketmq`, `nats`, `lines`).
`ring` holds many frames ready and writes only due times and numbers into them. `sender` keeps the connections busy, or
`native` does so in C. `receiver` takes what is delivered, by `intake` or, for pops, by `popper`.
"""

from __future__ import annotations

__all__: list[str] = []
