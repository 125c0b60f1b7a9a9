"""Orders through the door of an instance: what is told of one whose broker breaks off, and names of every kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from remoting.codes import RequestCode, ResponseCode
from service.door.coverage import ShardSight, Sighting
from service.door.orders import NoVerdictError, OrderDesk, UnreachableError
from tests.service.door_world import DoorWorld
from tests.support.plain_pending import PlainPending
from timewheel_client import ConnectionFailedError, ServiceClient


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    with DoorWorld(tmp_path) as made:
        yield made


class Wire:
    """The connections of a client: what the broker does, request by request; an error is raised."""

    def __init__(self, *does: Any) -> None:
        self.does = list(does)
        self.asked: list[int] = []
        self.connections = self

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def get(self, address: str) -> object:
        """A connection."""
        if self.does and self.does[0] == "away":
            raise ConnectionFailedError(f"{address}: refused")
        return self

    async def route(self, _topic: str) -> Any:
        return SimpleNamespace(brokers={"broker-a": {0: "127.0.0.1:1"}})

    async def request(self, _address: str, code: int, *_: Any, **__: Any) -> Any:
        await self.get(_address)
        self.asked.append(code)
        done = self.does.pop(0) if len(self.does) > 1 else self.does[0]
        if isinstance(done, Exception):
            raise done
        return done


STORED = SimpleNamespace(code=ResponseCode.SUCCESS, ext={"queueOffset": "7"}, remark="", body=b"")
BROKEN = ConnectionFailedError("127.0.0.1:1: the peer has closed")
FAILED = SimpleNamespace(code=ResponseCode.SYSTEM_ERROR, ext={}, remark="it ends", body=b"")
REFUSED = SimpleNamespace(code=ResponseCode.SERVICE_NOT_AVAILABLE, ext={}, remark="it ends", body=b"")
WRONG = SimpleNamespace(code=ResponseCode.SUCCESS, ext={}, remark="", body=b"")


def ordered(wire: Wire) -> None:
    async def work() -> None:
        client = ServiceClient("127.0.0.1:1", timeout_ms=700)
        client._core = wire  # type: ignore[assignment]
        await OrderDesk(lambda: client).give(lambda orders: orders.move("broker-a/0/3", by_ms=600_000))

    asyncio.run(work())


@pytest.mark.parametrize("trouble", [BROKEN, FAILED, REFUSED, WRONG], ids=["broken", "failed", "refused", "wrong"])
def test_a_command_that_is_stored_is_never_told_as_not_taken(trouble: Any) -> None:
    """The broker ends while the verdict is awaited: who believes that nothing happened moves by the interval twice."""
    wire = Wire(STORED, trouble)
    with pytest.raises(NoVerdictError, match="command stands"):
        ordered(wire)
    assert wire.asked.count(RequestCode.SEND_MESSAGE_V2) == 1


def test_a_command_whose_send_broke_off_may_stand() -> None:
    with pytest.raises(NoVerdictError, match="not known whether the command was stored"):
        ordered(Wire(BROKEN))


def test_a_send_that_failed_inside_the_broker_may_stand() -> None:
    """It was told as refused, its entry due as before; the service reads the queue after such an answer."""
    with pytest.raises(NoVerdictError, match="it ends: that does not say whether the command was stored"):
        ordered(Wire(FAILED))


def test_a_command_that_was_surely_not_written_is_told_as_not_taken() -> None:
    wire = Wire("away")
    with pytest.raises(UnreachableError, match="refused"):
        ordered(wire)
    assert wire.asked == []
    with pytest.raises(UnreachableError, match="it ends"):
        ordered(Wire(REFUSED))


# ------------------------------------------------------------------------------------------------ names


def test_a_broker_may_have_any_name(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for broker in ("a/b", "50%", "a%2Fb", "a?b", "a#b", "a b", "{x}", "count", "x;y=z"):
        name = f"{broker}/0/7"
        monkeypatch.setattr(
            world, "sights", lambda broker=broker: [ShardSight(f"{broker}/0", Sighting.OWNED, "me", "", PlainPending())]
        )
        for path in (f"pending/{quote(name, safe='')}", f"pending/{quote(broker, safe='')}/0/7"):
            for answer in (world.get(path), world.post(f"{path}/cancel")):
                assert answer.status == 504, (name, path, answer.body)


def test_the_page_writes_every_name_into_an_address_as_one() -> None:
    """A broker's name may have what ends a path: ``?`` and ``#``."""
    script = files("http_door").joinpath("common.js").read_text()
    assert [
        line for line in script.splitlines() if re.search(r"ask\(.*open\.id", line) and "(open.id)" not in line
    ] == []
    assert "const id = encodeURIComponent(open.id)" in script
