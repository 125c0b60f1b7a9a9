"""Access control: the file of rules, what they mean, and each request against them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.access.acl_file import AclFileError, read_acl_file
from broker.access.acl_rules import PUB, SUB, AclRules, address_pattern
from remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from remoting.json_dialect import dumps
from remoting.signing import sign
from tests.broker.core_rig import Client, Rig, properties

FILE = b"""# rules
globalWhiteRemoteAddresses:
  - 10.10.103.*   # the office
  - 192.168.0.{7,8}

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB

  - accessKey: 'rocketmq2'
    secretKey: "quoted # key"
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


def test_apaches_own_example_can_be_read():
    document = read_acl_file(FILE)
    assert document["globalWhiteRemoteAddresses"] == ["10.10.103.*", "192.168.0.{7,8}"]
    first, second = document["accounts"]
    assert first["secretKey"] == "12345678" and first["whiteRemoteAddress"] is None
    assert first["topicPerms"] == ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB"]
    assert first["groupPerms"] == ["groupA=DENY", "groupB=PUB|SUB"]
    assert second == {
        "accessKey": "rocketmq2",
        "secretKey": "quoted # key",
        "whiteRemoteAddress": "192.168.1.*",
        "admin": "true",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2]", "line 1: '[1, 2]' is no simple value; write each entry on its own line below the key"),
        ("a: &x 1", "no simple value"),
        ("a: |\n  text", "no simple value"),
        ("a: *x", "no simple value"),
        ("a:\n\t- x", "line 2: indented by a tab"),
        ("a: 'x", "line 1: a quote without its end"),
        ('a: "x\\n"', "must not contain its own quote or a backslash"),
        ("a: 1\na: 2", "line 2: a is given twice"),
        ("a: 1\n  b: 2", "line 2: indented more"),
        ("  a: 1\nb: 2", "line 2: its indentation fits no line above it"),
        ("just text", "line 1: expected KEY: VALUE, found 'just text'"),
        ("- a\n- b", "line 1: expected keys, found a list"),
        ("a: b: c", "no simple value"),
        ("\xff", "not UTF-8"),
        ("a:\n" + "".join(" " * n + "b:\n" for n in range(1, 30)), "nested too deep"),
    ],
)
def test_what_is_not_read_is_refused_with_its_line(text, problem):
    with pytest.raises(AclFileError) as caught:
        read_acl_file(text.encode("latin-1"))
    assert problem in str(caught.value)


words = st.text(alphabet="abcXYZ019._%|=-", min_size=1, max_size=8).filter(lambda word: word[0] not in "-|%=")
keys = st.sampled_from(["accessKey", "topicPerms", "admin", "x_1"])
documents = st.dictionaries(
    keys,
    st.recursive(
        st.one_of(st.none(), words),
        lambda inner: st.one_of(
            st.lists(inner.filter(lambda value: not isinstance(value, list)), min_size=1, max_size=3),
            st.dictionaries(keys, inner, min_size=1, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def written(value, indent=0):
    """The plain way to write such a file."""
    lines = []
    pad = " " * indent
    if isinstance(value, dict):
        for key, inner in value.items():
            lines += (
                [f"{pad}{key}: {inner}"] if isinstance(inner, str) else [f"{pad}{key}:", *written(inner, indent + 2)]
            )
    elif isinstance(value, list):
        for inner in value:
            lines += [f"{pad}- {inner}"] if isinstance(inner, str) else [f"{pad}-", *written(inner, indent + 2)]
    return lines


@given(documents)
def test_what_is_written_is_read(document):
    assert read_acl_file("\n".join(written(document)).encode()) == document


@given(st.binary(max_size=80))
def test_any_bytes_are_rules_or_an_error(data):
    try:
        AclRules.read(data)
    except AclFileError:
        pass


def test_rules():
    rules = AclRules.read(FILE)
    account = rules.accounts["RocketMQ"]
    assert "12345678" not in repr(account)
    assert account.refusal("topicB", PUB) is None
    assert account.refusal("topicC", PUB) == "No permission for topic topicC"
    assert account.refusal("topicC", SUB) is None
    assert account.refusal("topicD", SUB) == "No default permission for topic topicD"
    assert account.refusal("%RETRY%groupA", SUB) == "No permission for group groupA"
    assert account.refusal("%RETRY%other", SUB) is None
    assert rules.accounts["rocketmq2"].is_white("192.168.1.200") and not account.is_white("192.168.1.200")
    assert [matches("10.10.103.9") for matches in rules.white] == [True, False]


ONE = "accounts:\n- accessKey: 1234567\n  secretKey: 1234567\n  "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "every request would be refused"),
        ("acounts:\n- accessKey: a", "the file: unknown key acounts"),
        (
            ONE.replace("accessKey: 1234567", "accessKey: 1"),
            "account 1: accessKey must be a text of 7 characters at least",
        ),
        ("accounts:\n- text", "accounts: expected keys and values, found 'text'"),
        (ONE + "admin: yes", "admin is true or false, found 'yes'"),
        (ONE + "topicPerm: x", "unknown key topicPerm; known keys: accessKey, admin, "),
        (ONE.replace("secretKey", "secretkey"), "account 1234567: unknown key secretkey"),
        ("accounts:\n- accessKey: 1234567", "account 1234567: secretKey must be a text of 7 characters at least"),
        ("accounts:\n- secretKey: 1234567", "an account without accessKey: accessKey must be"),
        (
            ONE + "topicPerms:\n  - a=READ",
            "DENY, PUB, SUB or PUB|SUB, found 'READ'",
        ),
        (
            ONE + "topicPerms:\n  - a",
            "expected NAME=PERMISSION, found 'a'",
        ),
        (ONE + "topicPerms: a=SUB", "topicPerms is a list"),
        ("globalWhiteRemoteAddresses:\n- 300.1.1.1", "numbers up to 255, found '300.1.1.1'"),
        ("globalWhiteRemoteAddresses:\n- here", "an address is like 10.1.2.3"),
        ("accounts:\n" + "- accessKey: 1234567\n  secretKey: 1234567\n" * 2, "account 1234567 is listed twice"),
    ],
)
def test_rules_that_cannot_be_meant(text, problem):
    with pytest.raises(AclFileError) as caught:
        AclRules.read(text.encode())
    assert problem in str(caught.value)


def test_addresses():
    for pattern, inside, outside in [
        ("*", ["1.2.3.4", "::1"], []),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2", "a.b.c.d"]),
        ("10.1.2-9.*", ["10.1.2.3", "10.1.9.255"], ["10.1.10.3"]),
        ("10.0.0.{3,4}", ["10.0.0.3", "10.0.0.4"], ["10.0.0.34"]),
        ("10.0.0.3, 10.0.1.*", ["10.0.0.3", "10.0.1.9"], ["10.0.0.1"]),
    ]:
        matches = address_pattern(pattern)
        assert all(map(matches, inside)) and not any(map(matches, outside))


# ------------------------------------------------------------------------------------------------ at the broker

RULES = b"""
globalWhiteRemoteAddresses:
- 198.51.100.1
accounts:
- accessKey: writer-1
  secretKey: secret-w
  defaultTopicPerm: DENY
  topicPerms:
  - T=PUB
- accessKey: reader-1
  secretKey: secret-r
  defaultGroupPerm: SUB
  topicPerms:
  - T=SUB
- accessKey: the-admin
  secretKey: secret-a
  admin: true
- accessKey: trusted-host
  secretKey: secret-t
  whiteRemoteAddress: 203.0.113.9
"""


class Signed(Client):
    """Signs what it sends."""

    def __init__(self, rig, access_key=None, secret_key="", host="192.0.2.9"):
        super().__init__(rig, 50001)
        self.channel.peer = (host, 50001)
        self.keys = (access_key, secret_key)
        self.spoil = None

    def submit(self, code, ext=None, body=b"", flag=0, **more):
        access_key, secret_key = self.keys
        ext = {name: str(value) for name, value in (ext or {}).items()}
        if access_key is not None:
            ext["AccessKey"] = access_key
            ext["Signature"] = sign(ext, body, secret_key)
        if self.spoil:
            ext |= self.spoil
        return super().submit(code, ext, body, flag, **more)


@pytest.fixture
def rig(tmp_path):
    (tmp_path / "rules.yml").write_bytes(RULES)
    made = Rig(tmp_path / "store", aclEnable="true", aclFile=tmp_path / "rules.yml")
    made.core.topics.create_for_send("T", "TBW102", 4)
    yield made
    made.close()


def writer(rig):
    return Signed(rig, "writer-1", "secret-w")


def reader(rig):
    return Signed(rig, "reader-1", "secret-r")


def refused(reply, remark):
    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, remark)


def test_who_has_the_right_may(rig):
    assert writer(rig).send("T").code == 0
    assert [message.body for message in reader(rig).messages("T")] == [b"body"]
    refused(writer(rig).pull("T"), "No permission for topic T")
    refused(reader(rig).send("T"), "No permission for topic T")
    refused(writer(rig).send("Other"), "No default permission for topic Other")
    assert rig.core.topics.get("Other") is None


def test_signatures(rig):
    refused(Signed(rig).send("T"), "No accessKey is configured")
    refused(Signed(rig, "nobody-1", "x").send("T"), "No acl config for nobody-1")
    refused(Signed(rig, "writer-1", "wrong").send("T"), "Check signature failed for accessKey=writer-1")
    client = writer(rig)
    for spoil in ({"Signature": ""}, {"i": properties(a="b")}, {"SecurityToken": "x"}):
        client.spoil = spoil
        refused(client.send("T"), "Check signature failed for accessKey=writer-1")
    client.spoil = None
    assert client.send("T").code == 0, "the connection lives on"
    client.serialize_type = 1
    assert client.send("T").code == 0
    assert rig.store.max_offset("T", 0) == 2


def test_a_refused_one_way_request_is_not_answered_and_not_done(rig):
    client = Signed(rig)
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"body", FLAG_ONEWAY)
    rig.core.end_turn()
    assert client.take() == [] and rig.store.max_offset("T", 0) == 0


def test_addresses_that_need_less(rig):
    assert Signed(rig, host="198.51.100.1").send("T").code == 0
    assert Signed(rig, "trusted-host", "wrong", host="203.0.113.9").send("T").code == 0
    refused(Signed(rig, "trusted-host", "wrong").send("T"), "Check signature failed for accessKey=trusted-host")


def test_administration(rig):
    fields = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    refused(writer(rig).ask(code, fields), "Need admin permission for request code=17, but accessKey=writer-1 is not")
    assert rig.core.topics.get("New") is None
    assert Signed(rig, "the-admin", "secret-a").ask(code, fields).code == 0
    assert rig.core.topics.get("New") is not None
    assert writer(rig).ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0


def test_every_code_is_open_on_purpose_or_needs_an_account(rig):
    for code in rig.core.dispatcher.codes():
        assert Signed(rig).ask(code).code == ResponseCode.NO_PERMISSION
        reply = writer(rig).ask(code)
        writes = RequestCode(code).name.startswith(
            ("UPDATE_AND_CREATE", "DELETE", "CLEAN", "CLONE", "INVOKE_BROKER_TO_RESET", "UPDATE_B")
        )
        if writes:
            assert reply.remark.startswith("Need admin permission"), RequestCode(code).name


def test_heartbeats_name_topics_and_groups(rig):
    def beat(client, topic, group):
        subscription = {"topic": topic, "subString": "*", "subVersion": 1}
        consumer = {"groupName": group, "subscriptionDataSet": [subscription]}
        document = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}
        return client.ask(RequestCode.HEART_BEAT, {}, dumps(document))

    assert beat(reader(rig), "T", "g").code == 0
    refused(beat(reader(rig), "Secret", "g"), "No default permission for topic Secret")
    refused(beat(writer(rig), "T", "g"), "No default permission for group g")
    reply = reader(rig).ask(RequestCode.HEART_BEAT, {}, b"[1]")
    assert reply.code == ResponseCode.NO_PERMISSION and "does not name its topic or group" in reply.remark


def test_traces_may_be_sent_with_any_account(rig):
    assert reader(rig).send("RMQ_SYS_TRACE_TOPIC").code == 0


def test_new_rules_count_at_once_and_bad_ones_do_not(rig, tmp_path, caplog):
    acl = rig.core.acl
    assert not acl.reload()
    (tmp_path / "rules.yml").write_bytes(RULES.replace(b"T=PUB", b"T=DENY"))
    assert acl.reload()
    refused(writer(rig).send("T"), "No permission for topic T")
    (tmp_path / "rules.yml").write_bytes(RULES + b"oops")
    assert not acl.reload() and not acl.reload()
    assert caplog.text.count("the access rules stay as they were") == 1 and "line" in acl.trouble
    (tmp_path / "rules.yml").unlink()
    assert not acl.reload() and not acl.reload()
    assert caplog.text.count("the access rules stay as they were") == 2 and "No such file" in acl.trouble
    refused(writer(rig).send("T"), "No permission for topic T")
    assert re.search(r"request 310 of writer-1 refused: No permission for topic T", caplog.text)
    (tmp_path / "rules.yml").write_bytes(RULES)
    assert acl.reload() and not acl.trouble
    assert writer(rig).send("T").code == 0


def test_no_start_without_rules(tmp_path):
    with pytest.raises(AclFileError, match=r"plain_acl\.yml"):
        Rig(tmp_path / "store", aclEnable="true")
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    (tmp_path / "store" / "config" / "plain_acl.yml").write_bytes(b"accounts:\n- x")
    with pytest.raises(AclFileError, match="accounts: expected"):
        Rig(tmp_path / "store", aclEnable="true")
    (tmp_path / "store" / "config" / "plain_acl.yml").write_bytes(RULES)
    Rig(tmp_path / "store", aclEnable="true").close()


def test_the_signature_of_a_long_body_is_not_worked_out(rig, monkeypatch):
    """16 MiB held the network loop for 20 ms and more; no message is that long."""
    client = writer(rig)
    assert "The broker" not in str(client.send("T", body=bytes(4 << 20)).remark)
    monkeypatch.setattr("broker.access.acl.fits", lambda *_: 1 / 0)
    refused = client.send("T", body=bytes((4 << 20) + 1))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "may have 4194304 bytes at most, this one has 4194305" in str(refused.remark)
