"""What Apache Kafka's group coordinator decides in given cases; `GroupOracle.java` describes their JSON.

One JVM answers all cases of a call. Its start takes about a second, a case less than a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from tests.support.client_tools import java_command, run


def kafka_answers(kind: str, cases: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return Kafka's answer to each case."""
    lines = [json.dumps({"kind": kind, **case}) for case in cases]
    answers = run(java_command("GroupOracle"), "\n".join(lines).encode())
    found = [json.loads(line) for line in answers.splitlines()]
    assert len(found) == len(lines)
    return found


def partitions_json(assignment: Mapping[bytes, Iterable[int]]) -> dict[str, list[int]]:
    return {uuid_text(topic): sorted(numbers) for topic, numbers in assignment.items()}


def partitions_from(found: Mapping[str, Iterable[int]]) -> dict[bytes, frozenset[int]]:
    return {uuid_bytes(topic): frozenset(numbers) for topic, numbers in found.items()}
