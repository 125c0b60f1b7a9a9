"""The service beside an Apache broker with access control and TLS: an account with what docs/cluster.md names, no more.

A name server and a broker 5.5.0 with authentication and authorization, and with a certificate of their own. Two
messages go out, one is cancelled, one for a topic that the account may not write waits until it may::

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
from tests.service.process_cluster import ENTRY, NUMBER, Copies, RealCluster, now_ms
from tests.support.certificates import make_certificate
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


async def _grant(address: str, rights: dict[str, list[str]], *, new: bool = True) -> None:
    """What mqadmin's createUser and createAcl ask of a broker; updateAcl if the account is not ``new``."""
    connection = await ClientConnection.open(address, credentials=ADMIN, timeout_ms=60_000)
    user = {"username": "service", "password": "service-secret", "userType": "Normal", "userStatus": "enable"}
    entries = [
        {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}
        for resource, actions in rights.items()
        if actions
    ]
    acl = {"subject": "User:service", "policies": [{"policyType": "CUSTOM", "entries": entries}]}
    try:
        asked = [(CREATE_ACL if new else UPDATE_ACL, {"subject": "User:service"}, acl)]
        if new:
            asked.insert(0, (CREATE_USER, {"username": "service"}, user))
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
    cluster = RealCluster(options.folder, settings=SETTINGS)
    try:
        cluster.topics(2, "orders", "closed", credentials=ADMIN)
        asyncio.run(_grant(cluster.brokers[0].address, rights))
        service = cluster.service("--access-key", "service", "--tls-ca", tls)
        cluster.wait_owned(2, 120)
        verdict = asyncio.run(_use(cluster.namesrv, tls))
        delivered = happens(lambda: len(asyncio.run(_read(cluster.namesrv, tls, "orders"))) == 2, 60)
        waits = happens(lambda: "deliveries to closed at broker-0 wait: NO_PERMISSION" in service.tail(), 60)
        waits = waits and not asyncio.run(_read(cluster.namesrv, tls, "closed"))
        asyncio.run(_grant(cluster.brokers[0].address, {"Topic:closed": ["Pub", "Sub", "Get"]}, new=False))
        late = happens(lambda: list(asyncio.run(_read(cluster.namesrv, tls, "closed"))) == [3], 60)
        rejected = asyncio.run(_read(cluster.namesrv, tls, REJECTED_TOPIC))
        print(f"delivered {delivered}, cancelled: {verdict}, waits {waits}, then delivered {late}, rejected {rejected}")
        print(service.tail())
        return 0 if delivered and verdict == "done" and waits and late and not rejected else 1
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
