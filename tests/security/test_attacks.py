"""What a client can do to others with names of its choice."""

import re
from collections.abc import Iterator

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    CreateTopicsRequest,
    DescribeProducersRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from mpbroker.protocol.printable import ERROR_TEXT_LENGTH_MAX
from tests.support.attacks import FORGED, LONG_ID, SLOW_PATTERN, batch_of, creating, forged_join, produce
from tests.support.polling import until
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import SecureBroker

PRODUCERS_MAX, AUTOMATIC_MAX = 8, 5
SETTINGS = (
    *("-o", f"max.producer.ids.per.partition={PRODUCERS_MAX}"),
    *("-o", f"max.auto.created.partitions.per.principal={AUTOMATIC_MAX}"),
)
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \[[^\]]+\] ")
# Of the largest string, what a header and other fields leave.
LONG_NAME = "n" * 32_760


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Yield a broker with small bounds."""
    with served(SecureBroker(tmp_path_factory.mktemp("broker"), flags=SETTINGS)) as running:
        yield running


def test_names_forge_no_lines_of_the_log(broker: SecureBroker) -> None:
    """A group id with a line break and escapes is one line of the log, with escapes that can be read."""
    with broker.connect("OPEN") as client:
        client.client_id = f"client{FORGED}"
        member_id = client.ask(ApiKey.JOIN_GROUP, 5, forged_join()).member_id
        answer = client.ask(ApiKey.JOIN_GROUP, 5, forged_join(member_id))
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


# ---- tables


def test_chosen_producer_ids_fill_no_table(broker: SecureBroker) -> None:
    """A client that never asks for an id takes any it likes; a partition remembers so many."""
    create_topic(broker.bootstrap, "chosen-ids", 1)
    ids = [n << 40 for n in range(1, 5 * PRODUCERS_MAX)]
    with broker.connect("OPEN") as client:
        for number in ids:
            answer = client.ask(ApiKey.PRODUCE, 9, produce("chosen-ids", batch_of(number)))
            assert answer.responses[0].partition_responses[0].error_code == 0
        asked = DescribeProducersRequest.TopicRequest(name="chosen-ids", partition_indexes=[0])
        answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=[asked]))
        (partition,) = answer.topics[0].partitions
    known = sorted(one.producer_id for one in partition.active_producers)
    assert len(known) <= PRODUCERS_MAX
    assert known == ids[-len(known) :]


def test_metadata_requests_do_not_take_all_partitions(broker: SecureBroker) -> None:
    """Who only asks for topics has a share; who creates them by name is not affected."""
    names = [f"asked-{n}" for n in range(AUTOMATIC_MAX + 3)]
    with broker.connect("OPEN") as client:
        for _ in range(2):
            answer = client.ask(ApiKey.METADATA, 9, creating(names))
            codes = {topic.name: topic.error_code for topic in answer.topics}
            assert [codes[name] for name in names] == [0] * AUTOMATIC_MAX + [ErrorCode.POLICY_VIOLATION] * 3
        made = CreateTopicsRequest.CreatableTopic(name=names[-1], num_partitions=1, replication_factor=1)
        answer = client.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[made], timeout_ms=10_000))
        assert answer.topics[0].error_code == 0


def test_a_pattern_does_not_stop_the_coordinator(broker: SecureBroker) -> None:
    """It is refused where it would take seconds on one id that somebody has chosen for that."""
    with broker.connect("OPEN") as client:
        init = InitProducerIdRequest(transactional_id=LONG_ID, transaction_timeout_ms=1000)

        def has_id() -> bool:
            code: int = client.ask(ApiKey.INIT_PRODUCER_ID, 4, init).error_code
            assert code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            return code == 0

        until(has_id, "a producer id")
        for pattern, code in (
            (SLOW_PATTERN, ErrorCode.INVALID_REGULAR_EXPRESSION),
            ("[ab]*", ErrorCode.NONE),
        ):
            wanted = ListTransactionsRequest(transactional_id_pattern=pattern)
            answer = client.ask(ApiKey.LIST_TRANSACTIONS, 2, wanted)
            assert answer.error_code == code
            assert len(answer.transaction_states) == (code == ErrorCode.NONE)
