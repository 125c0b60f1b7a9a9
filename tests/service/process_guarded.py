"""The service beside an Apache broker with access control and TLS: an account with what docs/cluster.md names, no more.

A name server and a broker 5.5.0 with authentication and authorization, and with a certificate of their own. Two
messages go out, one is cancelled, one for a topic that the account may not write waits until it may. Then another
account sends through a door: normal, one-way, with a due time, and all of `tests.service.process_access_door`::

    python -m tests.service.process_guarded FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from remoting.codes import ResponseCode
from service.link.cluster import ClusterLink
from service.running.entries import REJECTED_TOPIC
from tests.service.process_access_door import ARRIVE, READERS, RETRY, SENT_BACK, use_the_door
from tests.service.process_cluster import ENTRY, NUMBER, Copies, RealCluster, now_ms
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.wait import happens
from timewheel_client import ClientConnection, ClientError, Producer, ServiceClient
from timewheel_client.net.credentials import Credentials

__all__ = ["main"]

ADMIN = Credentials("admin", "admin-secret")
ACCOUNT = Credentials("service", "service-secret")
CREATE_USER, CREATE_ACL, UPDATE_ACL = 3001, 3006, 3007
_AUTH = "org.apache.rocketmq.auth"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": "admin-secret"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "admin", "secretKey": "admin-secret"}),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
RIGHTS = {
    "Topic:TIMEWHEEL": ["Pub", "Sub", "Get"],
    "Topic:TIMEWHEEL_PROGRESS": ["Pub", "Sub", "Get"],
    "Topic:TIMEWHEEL_REJECTED": ["Pub", "Sub", "Get"],
    "Topic:orders": ["Pub", "Sub", "Get"],
    "Topic:closed": ["Sub", "Get"],
    "Group:TIMEWHEEL_SERVICE_TIMEWHEEL": ["Sub"],
}


SENDER = {"Topic:orders": ["Pub", "Sub"], f"Group:{READERS}": ["Sub"]}


async def _grant(address: str, rights: dict[str, list[str]], *, new: bool = True, name: str = "service") -> None:
    """What mqadmin's createUser and createAcl ask of a broker; updateAcl if the account is not ``new``."""
    connection = await ClientConnection.open(address, credentials=ADMIN, timeout_ms=60_000)
    user = {"username": name, "password": f"{name}-secret", "userType": "Normal", "userStatus": "enable"}
    entries = [
        {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}
        for resource, actions in rights.items()
        if actions
    ]
    acl = {"subject": f"User:{name}", "policies": [{"policyType": "CUSTOM", "entries": entries}]}
    try:
        asked = [(CREATE_ACL if new else UPDATE_ACL, {"subject": f"User:{name}"}, acl)]
        if new:
            asked.insert(0, (CREATE_USER, {"username": name}, user))
        for code, ext, body in asked:
            reply = await connection.request(code, ext, json.dumps(body).encode(), timeout_ms=60_000)
            assert reply.code == ResponseCode.SUCCESS, reply.remark
    finally:
        await connection.close()


async def _read(namesrv: str, tls: str, topic: str) -> dict[int, str]:
    """What stands in a topic: number to reason."""
    link = ClusterLink(namesrv, "READER", ADMIN, tls, member=False)
    copies = Copies()
    try:
        await link.core.start()
        route = await link.core.route(topic)
        for queue in route.read_queues:
            where = (topic, queue.broker_name, queue.queue_id)
            at, end = 0, await link.end(where)
            while at < end:
                pull = await link.pull(where, at, wait=False)
                copies.messages += pull.messages
                at = pull.next_offset
    except ClientError as error:
        print(f"reading {topic}: {error}")
    finally:
        await link.core.close()
    found = [dict(part.split("\x01") for part in one.properties.split("\x02") if part) for one in copies.messages]
    return {int(one[NUMBER]): one.get("TW_REASON", "") for one in found}


async def _use(namesrv: str, tls: str) -> str:
    """Send, and cancel one; its verdict."""
    keys = {"access_key": "admin", "secret_key": "admin-secret", "tls": tls}
    async with Producer(namesrv, **keys) as producer, ServiceClient(namesrv, **keys) as pending:  # type: ignore[arg-type]
        names = []
        for number, topic in enumerate(("orders", "orders", "orders", "closed")):
            due_ms = now_ms() + (60_000 if number == 2 else 2000)
            properties = {"TW_TOPIC": topic, "TW_DELIVER_MS": str(due_ms), NUMBER: str(number)}
            sent = await producer.send(ENTRY, b"body", properties=properties)
            names.append(f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}")
        return (await pending.cancel(names[2])).verdict


async def _send_through(front: str) -> str:
    """An account with rights of its own uses a door; what went wrong."""
    async with Producer(front, access_key="sender", secret_key="sender-secret") as producer:
        await producer.send("orders", b"now", properties={NUMBER: "100"})
        await producer.send_oneway("orders", b"one-way", properties={NUMBER: "101"})
        await producer.send("orders", b"later", properties={NUMBER: "102"}, at=now_ms() + 500)
        for topic, named in (("closed", "sender has no permission"), ("nowhere", "nowhere")):
            try:
                await producer.send(topic, b"now", at=now_ms() + 500 if topic == "nowhere" else None)
                return f"a send to {topic} was accepted"
            except ClientError as error:
                if named not in str(error):
                    return f"a send to {topic}: {error}"
    async with Producer(front, access_key="sender", secret_key="a-wrong-secret") as producer:
        try:
            await producer.send("orders", b"forged", properties={NUMBER: "103"})
            return "a wrong key was accepted"
        except ClientError as error:
            print(f"a wrong key: {error}")
    await use_the_door(front, "sender", "sender-secret")
    return ""


def _door(cluster: RealCluster, front: str, tls: str) -> str:
    """What goes through a door; what went wrong."""
    asyncio.run(_grant(cluster.brokers[0].address, SENDER, name="sender"))
    fault = asyncio.run(_send_through(front))
    wanted = {100, 101, 102, *ARRIVE}
    if not fault and not happens(lambda: wanted <= asyncio.run(_read(cluster.namesrv, tls, "orders")).keys(), 60):
        fault = f"arrived: {sorted(asyncio.run(_read(cluster.namesrv, tls, 'orders')))}"
    if not fault and not happens(lambda: SENT_BACK in asyncio.run(_read(cluster.namesrv, tls, RETRY)), 60):
        fault = "what was sent back is not in the retry topic"
    return fault


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without", default="", help="a right that is not given, as Topic:orders=Get")
    options = parser.parse_args(arguments)
    rights = {name: list(actions) for name, actions in RIGHTS.items()}
    if options.without:
        resource, action = options.without.split("=")
        rights[resource].remove(action)
    made = make_certificate(options.folder / "tls")
    served = {"test.mode.enable": "false", "server.keyPath": made.key, "server.certPath": made.certificate}
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(f"-Dtls.{name}={value}" for name, value in served.items())
    os.environ["TIMEWHEEL_SECRET_KEY"] = "service-secret"
    tls = str(made.certificate)
    cluster = RealCluster(options.folder, settings=SETTINGS, tls=True)
    try:
        cluster.topics(2, "orders", "closed", credentials=ADMIN)
        asyncio.run(_grant(cluster.brokers[0].address, rights))
        front = f"127.0.0.1:{free_port()}"
        service = cluster.service("--access-key", "service", "--tls-ca", tls, "--listen", front)
        cluster.wait_owned(2, 120)
        verdict = asyncio.run(_use(cluster.namesrv, tls))
        delivered = happens(lambda: len(asyncio.run(_read(cluster.namesrv, tls, "orders"))) == 2, 60)
        waits = happens(lambda: "deliveries to closed at broker-0 wait: NO_PERMISSION" in service.tail(), 60)
        waits = waits and not asyncio.run(_read(cluster.namesrv, tls, "closed"))
        asyncio.run(_grant(cluster.brokers[0].address, {"Topic:closed": ["Pub", "Sub", "Get"]}, new=False))
        late = happens(lambda: list(asyncio.run(_read(cluster.namesrv, tls, "closed"))) == [3], 60)
        rejected = asyncio.run(_read(cluster.namesrv, tls, REJECTED_TOPIC))
        fault = _door(cluster, front, tls)
        print(f"delivered {delivered}, cancelled: {verdict}, waits {waits}, then delivered {late}, rejected {rejected}")
        print(f"through a door: {fault or 'all as it should be'}")
        print(service.tail())
        return 0 if delivered and verdict == "done" and waits and late and not rejected and not fault else 1
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
