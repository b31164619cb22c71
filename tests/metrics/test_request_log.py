"""The request log over real sockets: on and off at run time, every path, no secrets."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpbroker.handlers.requests.request_log import HIDDEN, as_json
from mpbroker.network.processor.request_log import Ended, line
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.records.compression import Codec
from ops.bench.brokers import Mpbroker
from tests.metrics.test_with_broker import FETCH_VERSION, PRODUCE_VERSION, batch, create, fetch, produce
from tests.support.client_tools import eventually
from tests.support.metered_client import Client, Meter
from tests.support.real_brokers import control, served
from tests.support.secure_broker import PLAIN_PASSWORD, SecureBroker

PARKED = "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation=Fetch"
STAGES = ("requestQueueTimeMs", "localTimeMs", "remoteTimeMs", "responseQueueTimeMs", "sendTimeMs")


def switch(broker: Mpbroker, on: bool) -> None:
    assert control(broker).call("request-log", on=on) == {"request_log": on}


@contextmanager
def logging(broker: Mpbroker, client: Client) -> Iterator[None]:
    """Have the broker log what this client asks for."""
    switch(broker, True)
    try:
        # A handler looks at the switch before it takes what comes.
        eventually(lambda: bool(logged(broker, client)), "the log is on")
        yield
    finally:
        switch(broker, False)


def lines(broker: Mpbroker, client_id: str) -> list[dict[str, Any]]:
    found = [json.loads(text) for text in re.findall(r"Completed request:(\{.*\})", broker.output())]
    return [one for one in found if one["requestHeader"]["clientId"] == client_id]


def records(broker: Mpbroker, client_id: str) -> list[dict[str, Any]]:
    """Return the lines about produce and fetch requests alone."""
    wanted = ("PRODUCE", "FETCH")
    found = lines(broker, client_id)
    return [one for one in found if one["requestHeader"]["requestApiKeyName"] in wanted]


def test_every_request_has_its_line_while_the_log_is_on(broker: Mpbroker, client: Client, topic: str) -> None:
    data = batch()
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data))
    with logging(broker, client):
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data))
        client.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data, acks=0))
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 0))
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 3, wait_ms=60))
        eventually(lambda: len(records(broker, client.name)) == 4, "all four are logged")
        durable, unanswered, read, waited = found = records(broker, client.name)
    names = [one["requestHeader"]["requestApiKeyName"] for one in found]
    assert names == ["PRODUCE", "PRODUCE", "FETCH", "FETCH"]
    asked = durable["request"]["topicData"][0]["partitionData"][0]
    assert asked == {"index": 0, "recordsSizeInBytes": len(data)}
    assert durable["response"]["responses"][0]["partitionResponses"][0]["errorCode"] == 0
    assert unanswered["response"] is None
    assert read["response"]["responses"][0]["partitions"][0]["recordsSizeInBytes"] == 3 * len(data)
    # The wait begins before the handler has noted the end of its own work, and is in whole milliseconds.
    assert waited["localTimeMs"] + waited["remoteTimeMs"] > 58
    assert waited["remoteTimeMs"] > 0
    for one in found:
        assert sum(one[stage] for stage in STAGES) == pytest.approx(one["totalTimeMs"], abs=0.01)
        assert (one["principal"], one["listener"]) == ("User:ANONYMOUS", "PLAINTEXT")
        assert one["securityProtocol"] == "PLAINTEXT"
        assert set(one["clientInformation"]) == {"softwareName", "softwareVersion"}
    eventually(lambda: not logged(broker, client), "the log is off")
    client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data))
    client.call(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 0))
    assert len(records(broker, client.name)) == 4, "nothing is logged any more"


def test_the_line_of_a_produce_says_what_its_records_cost(broker: Mpbroker, client: Client) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create(client, topic, compression_type="gzip")
    with logging(broker, client):
        for codec in (Codec.NONE, Codec.GZIP):
            data = batch(value=bytes(1000), codec=codec)
            client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce(topic, data))
        eventually(lambda: len(records(broker, client.name)) == 2, "both are logged")
        rebuilt, kept = records(broker, client.name)
    assert rebuilt["temporaryMemoryBytes"] == kept["temporaryMemoryBytes"] > 1000
    assert 0 < rebuilt["messageConversionsTime"] <= rebuilt["localTimeMs"]
    assert "messageConversionsTime" not in kept
    assert "requestApiVersionDeprecated" not in rebuilt["requestHeader"]


def test_a_fetch_whose_client_went_has_its_line(
    broker: Mpbroker, client: Client, meter: Meter, topic: str
) -> None:
    with logging(broker, client):
        client.send(ApiKey.FETCH, FETCH_VERSION, fetch(topic, 0, wait_ms=60_000))
        eventually(lambda: meter.get(PARKED, "Value") == 1, "it is parked")
        client.close()
        eventually(lambda: len(records(broker, client.name)) == 1, "it is logged")
        (gone,) = records(broker, client.name)
    assert gone["response"] is None
    assert gone["remoteTimeMs"] > 0


def logged(broker: Mpbroker, client: Client) -> bool:
    """Tell whether a request that is sent now gets a line."""
    before = len(lines(broker, client.name))
    client.call(ApiKey.METADATA, 9, m.MetadataRequest([]))
    client.call(ApiKey.METADATA, 9, m.MetadataRequest([]))
    return len(lines(broker, client.name)) > before


def test_secrets_are_not_told() -> None:
    scram = m.AlterUserScramCredentialsRequest
    wanted = scram([], [scram.ScramCredentialUpsertion("ann", 1, 4096, b"salt", b"password-hash")])
    told = as_json("request", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, wanted)
    upsertion = told["upsertions"][0]
    assert (upsertion["name"], upsertion["salt"], upsertion["saltedPassword"]) == ("ann", HIDDEN, HIDDEN)
    token = m.SaslAuthenticateRequest(b"\0ann\0secret")
    assert as_json("request", ApiKey.SASL_AUTHENTICATE, 2, token) == {"authBytes": HIDDEN}


def test_a_line_is_json_and_its_stages_add_up() -> None:
    told = json.loads(line(Ended(b'{"request":{"a":1}', 10_000_000, 1_000_000, 2_500, 8_997_500, 7, 0, 0)))
    assert told["request"] == {"a": 1}
    assert (told["totalTimeMs"], told["throttleTimeMs"], told["localTimeMs"]) == (10.0, 7.0, 0.003)
    assert sum(told[stage] for stage in STAGES) == pytest.approx(told["totalTimeMs"], abs=0.01)


def test_a_request_over_tls_and_sasl_has_its_line(tmp_path: Path) -> None:
    with served(SecureBroker(tmp_path)) as broker:
        switch(broker, True)
        with broker.connect("BOTH") as client:
            client.plain()

            def found() -> list[dict[str, Any]]:
                client.ask(ApiKey.METADATA, 9, m.MetadataRequest([]))
                return lines(broker, "raw")

            eventually(lambda: bool(found()), "the log is on")
            one = found()[-1]
        seen = (one["securityProtocol"], one["listener"], one["principal"])
        assert seen == ("SASL_SSL", "BOTH", "User:ann")
        assert one["requestHeader"]["requestApiKeyName"] == "METADATA"
        assert sum(one[stage] for stage in STAGES) == pytest.approx(one["totalTimeMs"], abs=0.01)
        assert PLAIN_PASSWORD not in broker.output()
