"""What a client can do to others with names of its choice."""

import re

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    JoinGroupRequest,
)
from mpbroker.protocol.printable import ERROR_TEXT_LENGTH_MAX
from tests.support.polling import until
from tests.support.secure_broker import SecureBroker

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \[[^\]]+\] ")
FORGED = "\n2026-01-01 00:00:00,000 INFO [supervisor] all is well\x1b[2J\u202e"
# Of the largest string, what a header and other fields leave.
LONG_NAME = "n" * 32_760


def test_names_forge_no_lines_of_the_log(broker: SecureBroker) -> None:
    """A group id with a line break and escapes is one line of the log, with escapes that can be read."""
    with broker.connect("OPEN") as client:
        client.client_id = f"client{FORGED}"
        join = JoinGroupRequest(
            group_id=f"group{FORGED}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        join.member_id = client.ask(ApiKey.JOIN_GROUP, 5, join).member_id
        answer = client.ask(ApiKey.JOIN_GROUP, 5, join)
    assert answer.error_code == 0
    until(lambda: "all is well" in broker.output(), "a line about the group")
    (line, *_) = [line for line in broker.output().split("\n") if "all is well" in line]
    assert LOG_LINE.match(line)
    assert r"group\n2026-01-01" in line
    assert r"\x1b[2J\u202e" in line


@pytest.mark.parametrize("key", [ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ELECT_LEADERS])
def test_long_names_are_not_echoed_whole(broker: SecureBroker, key: ApiKey) -> None:
    """An error text has no room for the longest name; both of its ends are there."""
    with broker.connect("OPEN") as client:
        if key is ApiKey.ELECT_LEADERS:
            topics = [ElectLeadersRequest.TopicPartitions(topic=LONG_NAME, partitions=[0])]
            answer = client.ask(
                key, 1, ElectLeadersRequest(election_type=0, topic_partitions=topics, timeout_ms=1000)
            )
            (one,) = answer.replica_election_results[0].partition_result
            assert one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            user = DescribeUserScramCredentialsRequest.UserName(name=LONG_NAME)
            (one,) = client.ask(key, 0, DescribeUserScramCredentialsRequest(users=[user])).results
            assert one.error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert "nnn… (" in one.error_message
    assert len(one.error_message) < ERROR_TEXT_LENGTH_MAX + 100
    assert "Traceback" not in broker.output()
