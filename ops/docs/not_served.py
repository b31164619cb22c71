"""Kafka's APIs that are not served here: what a user loses, which tools fail, what to use instead.

Each of Kafka's API keys is listed here, is served, or is used only between brokers (tests/ops/test_docs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mpbroker.protocol.api_keys import ApiKey


class NotServed(NamedTuple):
    """APIs not served. `tools`: Kafka's tools that fail, and their message if it is not the usual one."""

    keys: tuple[ApiKey, ...]
    lost: str
    tools: str
    instead: str


# APIs that controllers serve, and that Kafka's brokers do not advertise.
OF_CONTROLLERS = frozenset(
    {
        *(ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.ALTER_PARTITION),
        *(ApiKey.ENVELOPE, ApiKey.FETCH_SNAPSHOT, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT),
        *(ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.CONTROLLER_REGISTRATION, ApiKey.ASSIGN_REPLICAS_TO_DIRS),
        ApiKey.UPDATE_RAFT_VOTER,
    }
)
# What brokers ask of each other.
SHARE_STATE = frozenset(
    {
        *(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE),
        *(ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
AMONG_BROKERS = OF_CONTROLLERS | SHARE_STATE

NOT_SERVED = (
    NotServed(
        (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER),
        "changing the members of the controllers' quorum; there is one node",
        "`kafka-metadata-quorum.sh add-controller` and `remove-controller`",
        "nothing to change",
    ),
    NotServed(
        (
            *(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.SHARE_FETCH),
            *(ApiKey.SHARE_ACKNOWLEDGE, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS),
            *(ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS),
        ),
        "share groups (queues, KIP-932)",
        "`kafka-console-share-consumer.sh`; `kafka-share-groups.sh` but for `--list`, which is empty",
        "consumer groups",
    ),
    NotServed(
        (ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE),
        "groups of the streams protocol (KIP-1071)",
        "`kafka-streams-groups.sh` but for `--list`, which is empty",
        "Kafka Streams with `group.protocol=classic`, its default",
    ),
)


def _listed(keys: Iterable[ApiKey]) -> str:
    return ", ".join(f"{int(key)} {key.name}" for key in sorted(keys))


def table() -> str:
    rows = [
        f"| {_listed(one.keys)} | {one.lost} | {one.tools} | {one.instead} |" for one in sorted(NOT_SERVED)
    ]
    return "\n".join(
        [
            "### Kafka's APIs that are not served",
            "",
            "All that Kafka 4.3 has for clients. A Java tool that needs one ends with "
            "`UnsupportedVersionException: The node",
            "does not support` and the API's name, unless this table has another.",
            "",
            "| keys | missing | tools that fail | instead |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
