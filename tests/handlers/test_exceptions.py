"""Whatever an API raises, its client hears of it within a second, and nobody else does.

(Kafka: KafkaApis.handle and handleError; a thread that only logs what it caught leaves a client waiting.)
"""

from __future__ import annotations

import shlex
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol import messages
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import REQUESTS, Message
from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker
from tests.handlers import faulty_broker as faults
from tests.real_clients.conftest import served

WITHIN_S = 1.0
APIS = all_apis()
COMMAND = (
    f"{shlex.quote(sys.executable)} -m tests.handlers.faulty_broker serve --listeners PLAINTEXT://{HOST}:{{port}}"
    " --log-dirs {log_dir} --processors 1 --handlers 2"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"), template=COMMAND)) as made:
        yield made


def filled(cls: type[Message]) -> Message:
    """A message with one entry in each of its lists, so that its error response has places for the error."""
    made = cls()
    for name, hint in get_type_hints(cls, vars(messages)).items():
        inner = next((each for each in (hint, *get_args(hint)) if get_origin(each) is list), None)
        if inner is None:
            continue
        (of,) = get_args(inner)
        if isinstance(of, type) and issubclass(of, Message):
            setattr(made, name, [filled(of)])
        elif of is str:
            setattr(made, name, ["x"])
    return made


def request_of(key: int, client_id: str) -> bytes:
    body = filled(REQUESTS[key])
    if key == ApiKey.PRODUCE:
        body.acks = -1  # type: ignore[attr-defined]
    if key == ApiKey.FETCH:
        body.session_epoch = -1  # type: ignore[attr-defined]
    return b"".join(encode_request_frame(RequestHeader(key, APIS[key].latest, 77, client_id), body))


def ask(connection: socket.socket, key: int, client_id: str) -> Any:
    """The response, or None if the connection was closed; both in time."""
    connection.settimeout(WITHIN_S)
    sent = time.monotonic()
    connection.sendall(request_of(key, client_id))
    try:
        size = frames.receive(connection, 4)
        frame = frames.receive(connection, *struct.unpack(">i", size))
    except ConnectionError:
        return None
    finally:
        assert time.monotonic() - sent < WITHIN_S
    correlation, response = decode_response_frame(key, APIS[key].latest, frame)
    assert correlation == 77
    return response


def error_codes(response: Any) -> set[int]:
    found: set[int] = set()
    if isinstance(response, Message):
        for field in msgspec.structs.fields(response):
            value = getattr(response, field.name)
            found |= {value} if field.name == "error_code" else error_codes(value)
    elif isinstance(response, list):
        for each in response:
            found |= error_codes(each)
    return found


def others_are_served(broker: Mpbroker) -> bool:
    with frames.connected(broker.address) as connection:
        return ask(connection, ApiKey.METADATA, "good") is not None


@pytest.mark.parametrize("fault", [faults.RAISES, faults.ANSWERS_NONSENSE])
@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_what_an_api_raises_is_answered(broker: Mpbroker, key: int, fault: str) -> None:
    with frames.connected(broker.address) as connection:
        response = ask(connection, key, fault)
        if response is not None:
            assert ErrorCode.UNKNOWN_SERVER_ERROR in error_codes(response)
            # The channel is not muted: the next request on it is served.
            assert ask(connection, ApiKey.METADATA, "good") is not None
    assert others_are_served(broker)


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_one_whose_error_response_fails_too_is_closed(broker: Mpbroker, key: int) -> None:
    with frames.connected(broker.address) as connection:
        assert ask(connection, key, faults.RAISES_TWICE) is None
    assert others_are_served(broker)


def test_no_process_died_of_it(broker: Mpbroker) -> None:
    for key in APIS:
        with frames.connected(broker.address) as connection:
            ask(connection, key, faults.RAISES)
    assert "was replaced" not in broker.output()


def test_a_pipelined_request_behind_one_that_fails_is_served(broker: Mpbroker) -> None:
    with frames.connected(broker.address) as connection:
        connection.settimeout(WITHIN_S)
        connection.sendall(
            request_of(ApiKey.METADATA, faults.RAISES) + request_of(ApiKey.DESCRIBE_CLUSTER, "good")
        )
        for _ in range(2):
            (size,) = struct.unpack(">i", frames.receive(connection, 4))
            frames.receive(connection, size)


def test_a_fatal_error_stops_the_broker_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mpbroker(tmp_path / "broker", template=COMMAND)
    try:
        broker.start()
        members = broker.tree().members()
        with frames.connected(broker.address) as connection:
            assert ask(connection, ApiKey.METADATA, faults.IS_FATAL) is None
        assert broker.process is not None
        assert broker.process.wait(10) == faults.FATAL_STATUS, broker.output()
        for member in members:
            member.wait(10)
        assert "the planet is gone. Find another" in broker.output()
        assert "process cannot go on; its message above says why" in broker.output()
    finally:
        broker.kill()
