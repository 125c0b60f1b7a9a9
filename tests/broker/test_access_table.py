"""Each request code in each role, on a broker with real sockets, against the table of docs/security.md."""

import asyncio
import contextlib
import re
import socket
from pathlib import Path

import pytest

from broker.access.access_table import ACCESS, ANYBODY, NOBODY
from broker.broker import Broker
from broker.net.channel import BROKER_PORT, NAME_SERVER_PORT, NO_PORT
from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from remoting.messages.message import parse_message_id
from remoting.signing import sign
from tests.broker.core_rig import properties
from tests.broker.test_broker import Caller, config_in, send_fields

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"
SECRET = "the-secret-key"
ROLES = (
    "unsigned",
    "without-rights",
    "pub-only",
    "sub-only",
    "pub-and-sub",
    "pending-only",
    "the-admin",
    "trusted address",
)
RIGHTS = {"pub-only": "PUB", "sub-only": "SUB", "pub-and-sub": "PUB|SUB", "pending-only": "PENDING"}
RULES = f"""
globalWhiteRemoteAddresses:
- 127.0.0.2
accounts:
- accessKey: without-rights
  secretKey: {SECRET}
- accessKey: the-admin
  secretKey: {SECRET}
  admin: true
""" + "".join(
    f"- accessKey: {name}\n  secretKey: {SECRET}\n  topicPerms:\n  - T={right}\n"
    f"  - DefaultCluster_REPLY_TOPIC={right}\n  groupPerms:\n  - g={right}\n"
    for name, right in RIGHTS.items()
)
ALL = frozenset(ROLES)
ACCOUNTS = ALL - {"unsigned"}
MIGHTY = frozenset(("the-admin", "trusted address"))
WRITERS = MIGHTY | {"pub-only", "pub-and-sub"}
READERS = MIGHTY | {"sub-only", "pub-and-sub"}
WHO = {
    "nothing": ALL,
    "PENDING of the topic, which it must name": MIGHTY | {"pending-only"},
    "any account": ACCOUNTS,
    "`admin: true`": MIGHTY,
    "PUB or SUB of the topic": WRITERS | READERS,
    "PUB of the topic; SUB of the group if it is a retry topic": WRITERS,
    "PUB of the topic; SUB of the group if it is a retry topic; PUB of the cluster's reply topic in any case": WRITERS,
    "PUB of the topic that the half message is for": WRITERS,
    "SUB of the consumer group, if it names one": READERS,
    "SUB of the group": READERS,
    "SUB of the group and of each topic": READERS,
    "SUB of each group and topic that it names": READERS,
    "SUB of the group and of the message's topic": READERS,
    "SUB of the group, PUB or SUB of each topic that it names": READERS,
    "SUB of the message's topic": READERS,
    "SUB of the topic": READERS,
    "SUB of the topic and of the group": READERS,
    "SUB of the topic, and of the group if it names one": READERS,
    "SUB of each consumer group and of each topic that it subscribes to": READERS,
}
REFUSALS = ("No accessKey", "Check signature", "No permission for", "No default permission for", "Need admin", "Nobody")
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "pg"}],
    "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
}
BODIES = {
    RequestCode.HEART_BEAT: HEARTBEAT,
    RequestCode.LOCK_BATCH_MQ: {
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}],
    },
    RequestCode.QUERY_ASSIGNMENT: {"topic": "T", "consumerGroup": "g", "messageModel": "CLUSTERING"},
    RequestCode.BATCH_ACK_MESSAGE: {"acks": [{"c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1}]},
    RequestCode.UNLOCK_BATCH_MQ: {
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}],
    },
}


def documented() -> dict[str, list[tuple[int, str]]]:
    """What docs/security.md says: words to (code, name)."""
    section = DOCUMENT.read_text(encoding="utf-8").split("### Request by request", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (.+?) \| (\d.*) \|$", section, re.MULTILINE)
    return {
        words: [(int(code), name) for code, name in re.findall(r"(\d+)(?: ([A-Z]\w+))?", codes)]
        for words, codes in rows
    }


def test_the_page_and_the_table_say_the_same():
    table: dict[str, list[tuple[int, str]]] = {}
    for code, rule in ACCESS.items():
        name = "" if rule.role is NOBODY else RequestCode(code).name
        table.setdefault(rule.words, []).append((code, name))
    assert documented() == {words: sorted(codes) for words, codes in table.items()}
    assert set(ACCESS) == set(RequestCode)
    assert set(table) == {*WHO, "not served"}


class Peer:
    """One role's connection to one of the ports."""

    def __init__(self, caller: Caller, role: str) -> None:
        self.caller = caller
        self.role = role

    async def ask(self, code, ext, body=b""):
        ext = {name: str(value) for name, value in ext.items()}
        if self.role not in ("unsigned", "trusted address"):
            ext["AccessKey"] = self.role
            ext["Signature"] = sign(ext, body, SECRET)
        return await self.caller.ask(code, ext, body)


async def connected(port: int, role: str) -> Peer:
    sock = socket.socket()
    sock.bind(("127.0.0.2" if role == "trusted address" else "127.0.0.1", 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return Peer(Caller(sock), role)


def fields(code: int, message: int, half: tuple[int, int]) -> dict[str, object]:
    """Fields of a request about topic T and group g; what a request does not know, it does not look at."""
    ext: dict[str, object] = {
        **send_fields("T"),
        "topic": "T",
        "group": "g",
        "consumerGroup": "g",
        "producerGroup": "pg",
    }
    ext |= {
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
    }
    ext |= {"queueOffset": 0, "maxMsgNums": 1, "commitOffset": 0, "timestamp": 0, "clientID": "c", "offset": message}
    ext |= {
        "delayLevel": 0,
        "key": "k",
        "maxNum": 1,
        "beginTimestamp": 0,
        "endTimestamp": 9,
        "recallHandle": "?",
        "count": 1,
    }
    ext |= {"index": 0, "statsName": "TOPIC_PUT_NUMS", "statsKey": "T", "srcGroup": "g", "destGroup": "g", "msgId": "?"}
    ext |= {"groupName": "none", "namespace": "n", "value": "v", "cluster": "C", "clusterName": "C", "brokerName": "b"}
    ext |= {"brokerAddr": "192.0.2.1:1", "brokerId": 0}
    ext |= {"invisibleTime": 1, "pollTime": 0, "initMode": 0, "extraInfo": "0 1 1 0 0 broker-a 0 0"}
    if code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        ext["topic"] = "%RETRY%g_T"
    if code == RequestCode.END_TRANSACTION:
        ext |= {"tranStateTableOffset": half[0], "commitLogOffset": half[1], "commitOrRollback": 12}
    if code == RequestCode.DELETE_TOPIC_IN_BROKER:
        ext["topic"] = "NoSuchTopic"
    return ext


@contextlib.asynccontextmanager
async def world_in(tmp_path):
    (tmp_path / "rules.yml").write_text(RULES)
    async with Broker(config_in(tmp_path, aclEnable="true", aclFile=tmp_path / "rules.yml")) as broker:
        peers = {
            (port, role): await connected(number, role)
            for port, number in ((BROKER_PORT, broker.listen_port), (NAME_SERVER_PORT, broker.namesrv_port))
            for role in ROLES
        }
        yield broker, peers
        for peer in peers.values():
            peer.caller.close()


@pytest.mark.asyncio
async def test_every_code_in_every_role(tmp_path):
    async with world_in(tmp_path) as (broker, peers):
        admin = peers[BROKER_PORT, "the-admin"]
        sent = await admin.ask(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")
        _, message = parse_message_id(sent.ext["msgId"])
        served = broker.core.dispatcher.codes(BROKER_PORT) | broker.core.dispatcher.codes(NAME_SERVER_PORT)
        wrong, cells = [], 0
        for words, codes in documented().items():
            for code, _ in codes:
                port = NAME_SERVER_PORT if code in broker.core.dispatcher.codes(NAME_SERVER_PORT) else BROKER_PORT
                for role in ROLES:
                    half = (0, 0)
                    if code == RequestCode.END_TRANSACTION:
                        ext = send_fields("T", properties(TRAN_MSG="true", PGROUP="pg"))
                        reply = await admin.ask(RequestCode.SEND_MESSAGE_V2, ext, b"half")
                        half = (int(reply.ext["queueOffset"]), parse_message_id(reply.ext["msgId"])[1])
                    body = dumps(BODIES[code]) if code in BODIES else b"x"
                    reply = await peers[port, role].ask(code, fields(code, message, half), body)
                    cells += 1
                    if words == "not served":
                        assert code not in served
                        good = reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    else:
                        refused = reply.code == ResponseCode.NO_PERMISSION and (reply.remark or "").startswith(REFUSALS)
                        good = refused == (role not in WHO[words])
                    if not good:
                        wrong.append((RequestCode(code).name, role, words, reply.code, reply.remark))
        assert not wrong
        assert cells == len(RequestCode) * len(ROLES)


@pytest.mark.asyncio
async def test_each_port_answers_its_own_codes_and_no_others(tmp_path):
    async with world_in(tmp_path) as (broker, peers):
        codes = {port: broker.core.dispatcher.codes(port) for port in (BROKER_PORT, NAME_SERVER_PORT)}
        assert codes[BROKER_PORT] and codes[NAME_SERVER_PORT] and not codes[BROKER_PORT] & codes[NAME_SERVER_PORT]
        for port, others in ((BROKER_PORT, NAME_SERVER_PORT), (NAME_SERVER_PORT, BROKER_PORT)):
            for code in codes[others]:
                reply = await peers[port, "trusted address"].ask(code, fields(code, 0, (0, 0)))
                assert (code, reply.code) == (code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        assert not broker.core.dispatcher.codes(NO_PORT), "who we dial may ask for nothing"


@pytest.mark.asyncio
async def test_what_is_not_in_the_table_is_for_nobody(tmp_path, monkeypatch):
    async with world_in(tmp_path) as (_, peers):
        monkeypatch.setattr("broker.access.acl.ACCESS", {})
        for role in ("unsigned", "pub-and-sub", "the-admin"):
            reply = await peers[BROKER_PORT, role].ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
            assert reply.code == ResponseCode.NO_PERMISSION


def test_only_the_name_servers_look_ups_are_for_anybody():
    assert {code for code, rule in ACCESS.items() if rule.role is ANYBODY} == {
        *(101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 901)
    }
