"""Names of topics, APIs and errors as tests write them."""

from __future__ import annotations

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import problem_with
from mpbroker.testing.names import api_key, error_code, unique_name


@pytest.mark.parametrize("beginning", ["test_x", "test_x[1-ä/é]", "x" * 500, "[]"])
def test_a_topic_gets_a_name_that_kafka_takes(beginning: str) -> None:
    first, second = unique_name(beginning), unique_name(beginning)
    assert first != second
    assert problem_with(first) is None


@pytest.mark.parametrize("name", ["ListOffsets", "LIST_OFFSETS", "list_offsets", 2, ApiKey.LIST_OFFSETS])
def test_an_api_has_kafkas_name(name: str | int) -> None:
    assert api_key(name) == ApiKey.LIST_OFFSETS


@pytest.mark.parametrize("name", ["NOT_COORDINATOR", "not_coordinator", 16, ErrorCode.NOT_COORDINATOR])
def test_an_error_has_kafkas_name(name: str | int) -> None:
    assert error_code(name) == ErrorCode.NOT_COORDINATOR


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="Kafka has no API 'Produces': name one such as Produce"):
        api_key("Produces")
    with pytest.raises(ValueError, match="Kafka has no error 'NO_LEADER': name one such as NOT_LEADER"):
        error_code("NO_LEADER")
