"""What stock clients say of a send that failed: out of time, or refused."""

from __future__ import annotations

import pytest

from tests.support.clients import was_out_of_time

pytestmark = pytest.mark.pure

CLIENT = "org.apache.rocketmq.client.exception."
REMOTING = "org.apache.rocketmq.remoting.exception."
WAIT = REMOTING + "RemotingTimeoutException: wait response on the channel <127.0.0.1:10911> timeout, "


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (REMOTING + "RemotingTooMuchRequestException: sendDefaultImpl call timeout", True),
        (REMOTING + "RemotingTimeoutException: invokeSync call the addr[127.0.0.1:10911] timeout", True),
        (WAIT + "1493(ms)", True),
        (WAIT + "8999(ms)", True),
        (WAIT + "9997(ms)", False),
        (WAIT + "10000(ms)", False),
        (CLIENT + "MQBrokerException: CODE: 14  DESC: service not available now", False),
        (CLIENT + "MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE] sendDefaultImpl call timeout", False),
        (CLIENT + "MQClientException: Send [3] times, still failed, cost [44]ms, Topic: T", False),
        (REMOTING + "RemotingConnectException: connect to 127.0.0.1:10911 failed", False),
    ],
)
def test_time_that_is_used_up_is_told_from_a_refusal(error: str, is_so: bool) -> None:
    assert was_out_of_time(error) == is_so
