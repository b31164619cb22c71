"""Settings by Kafka's names: what is understood, and that nothing which guards a connection is left out."""

from pathlib import Path

import pytest

from mpbroker.client.config import ClientConfig, from_properties, parse_servers
from mpbroker.client.errors import ClientConfigError


def test_defaults_are_kafkas() -> None:
    config, unknown = from_properties({})
    assert (config, unknown) == (ClientConfig(), [])
    assert (config.request_timeout_ms, config.reconnect_backoff_max_ms) == (30_000, 1_000)


def test_a_file_as_kafkas_tools_take_it(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    config, unknown = from_properties(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="al\\"ice" password="a b=c;";',
            "ssl.truststore.location": str(authority),
            "ssl.truststore.type": "PEM",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": " 1234 ",
            "group.id": "g",
        }
    )
    assert (config.security_protocol, config.uses_tls, config.uses_sasl) == ("SASL_SSL", True, True)
    assert (config.sasl_username, config.sasl_password) == ('al"ice', "a b=c;")
    assert (config.ssl_endpoint_identification_algorithm, config.request_timeout_ms) == ("", 1234)
    assert unknown == ["group.id"]


@pytest.mark.parametrize(
    ("option", "by_token"),
    [("", False), (' tokenauth="true"', True), (" tokenauth=True", True), (' tokenauth="no"', False)],
)
def test_a_delegation_token_in_place_of_a_user(option: str, by_token: bool) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    config, _ = from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{module} required username="id" password="bWFj"{option};',
        }
    )
    assert (config.sasl_username, config.sasl_by_token) == ("id", by_token)


def test_librdkafkas_names() -> None:
    config, _ = from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
        }
    )
    assert (config.sasl_mechanism, config.sasl_username, config.sasl_password) == ("PLAIN", "u", "p")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not one of PLAINTEXT"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism, one of PLAIN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs username and password"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not one of"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name is not supported"),
        ({"ssl.engine.factory.class": "x"}, "ssl.engine.factory.class is not supported"),
        ({"ssl.truststore.location": "/nowhere"}, "ssl.truststore.location: no such file: /nowhere"),
        ({"ssl.endpoint.identification.algorithm": "none"}, "is neither https nor empty"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is not one of TLSv1.2, TLSv1.3"),
        ({"ssl.enabled.protocols": ""}, "names no version of TLS"),
        ({"ssl.keystore.key": "x"}, "belong together"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms=soon is not a number"),
        ({"request.timeout.ms": "0"}, "the least is 1"),
        ({"sasl.jaas.config": "x.Krb5LoginModule required;"}, "the login module is one of"),
        ({"sasl.jaas.config": 'x.PlainLoginModule required username="u";'}, "no username or no password"),
        ({"sasl.jaas.config": 'x.PlainLoginModule required password="se-cret'}, "sasl.jaas.config: "),
    ],
)
def test_what_cannot_be_honoured_is_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ClientConfigError) as failed:
        from_properties(properties)
    assert message in str(failed.value)
    assert "se-cret" not in str(failed.value)


def test_secrets_are_not_shown() -> None:
    config, _ = from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "se-cret",
        }
    )
    assert config.sasl_password == "se-cret"
    assert "se-cret" not in f"{config!r} {config}"


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", 9092)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 9092)),
        ("unix:/run/k.sock", ("unix:/run/k.sock", 0)),
    ],
)
def test_servers(address: str, parsed: tuple[str, int]) -> None:
    assert parse_servers(address) == [parsed]


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:70000", "h:x", "unix:k.sock"])
def test_what_is_no_server(address: str) -> None:
    with pytest.raises(ClientConfigError, match="is not HOST:PORT"):
        parse_servers(address)
