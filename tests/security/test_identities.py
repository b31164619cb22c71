"""Who a client with a certificate is to the server, as the request log tells."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import MetadataRequest
from tests.support.certificates import Authority, Signed, name
from tests.support.client_tools import eventually
from tests.support.real_brokers import control
from tests.support.secure_broker import Closed, RawClient, SecureBroker

ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture(name="logging", scope="module")
def _logging(broker: SecureBroker) -> Iterator[SecureBroker]:
    """The same broker while its request log is on."""
    supervisor = control(broker)
    supervisor.call("request-log", on=True)
    yield broker
    supervisor.call("request-log", on=False)


def principal(broker: SecureBroker, listener: str, client: RawClient) -> str:
    """Return the principal that the request log tells for this connection."""
    port = client.sock.getsockname()[1]

    def told() -> list[dict[str, Any]]:
        client.ask(ApiKey.METADATA, 9, MetadataRequest([]))
        found = [json.loads(text) for text in re.findall(r"Completed request:(\{.*\})", broker.output())]
        return [one for one in found if f":{port}-" in one["connection"] and one["listener"] == listener]

    eventually(lambda: bool(told()), "the log is on")
    return str(told()[-1]["principal"])


def context(broker: SecureBroker, own: Signed | None) -> ssl.SSLContext:
    made = broker.tls_context()
    if own is not None:
        made.load_cert_chain(own.write(broker.directory / "shown.pem"))
    return made


def subject(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """From the least to the most particular, as certificates have it; texts have it the other way round."""
    return x509.Name([x509.NameAttribute(*part) for part in parts])


def test_a_certificate_that_is_requested_may_be_missing(logging: SecureBroker) -> None:
    with logging.connect("TLS") as nobody, logging.connect("TLS", own=True) as client:
        assert principal(logging, "TLS", nobody) == ANONYMOUS
        # RULE:^CN=([^,]+),.*$/$1/L
        assert principal(logging, "TLS", client) == "User:client"


def test_one_that_is_shown_must_be_good_although_none_is_required(logging: SecureBroker) -> None:
    stranger = Authority("somebody else").sign("Client")
    with (
        pytest.raises((ssl.SSLError, Closed)),
        logging.connect_as("TLS", context(logging, stranger)) as client,
    ):
        client.ask(ApiKey.METADATA, 9, MetadataRequest([]))


def test_a_name_that_no_rule_maps_stays_whole(logging: SecureBroker) -> None:
    """The rule wants a CN in front; DEFAULT behind it takes whatever comes."""
    other = subject((NameOID.COMMON_NAME, "Ann"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "Ops"))
    with logging.connect_as("TLS", context(logging, logging.authority.sign(other))) as client:
        assert principal(logging, "TLS", client) == "User:OU=Ops,CN=Ann"


def test_without_rules_the_whole_name_counts(logging: SecureBroker) -> None:
    shown = logging.authority.sign(name("Jane"))
    with logging.connect_as("MUTUAL", context(logging, shown)) as client:
        assert principal(logging, "MUTUAL", client) == r"User:CN=Jane,O=mpbroker\, tests,C=DE"


def test_on_a_listener_with_sasl_the_certificate_names_nobody(logging: SecureBroker) -> None:
    with logging.connect_as("BOTH", context(logging, logging.client)) as client:
        assert client.plain("bob", "pl41n-Pa55word2").error_code == 0
        assert principal(logging, "BOTH", client) == "User:bob"
