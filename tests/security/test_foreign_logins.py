"""Logins by clients that nobody here wrote, over TLS and SASL; and who makes SCRAM users."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.topology import LAYOUT_VERSION, PUBLIC_MAGIC, counter_page, processor
from shm.region import Region
from tests.support.client_adapters import (
    CONSUMER,
    confluent_read,
    confluent_write,
    kafka_python_read,
    kafka_python_write,
)
from tests.support.client_samples import CREATE_TIME_MS, Record, by_partition, stored_in
from tests.support.client_tools import ToolError, eventually, kafka_tool, kafka_tool_errors
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic
from tests.support.secure_broker import PLAIN_PASSWORD, PROTOCOLS, SCRAM_PASSWORD, SecureBroker
from tests.support.tokens import Signer

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
COMMON = "org.apache.kafka.common.security"
SCRAM_MODULE = f"{COMMON}.scram.ScramLoginModule"
# What a processor and a client's TLS take in several pieces.
BIG_BYTES = 900_000
SENDS, TOKEN_S = 3, 1.5


@pytest.fixture(scope="module", name="users")
def _users(broker: SecureBroker) -> SecureBroker:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        flags = ("--mechanism", mechanism, "--password-file", "-")
        said = OwnCli(broker.bootstrap)("user", "add", "dora", *flags, stdin=SCRAM_PASSWORD.encode() + b"\n")
        assert said.out == f"user dora can log in with {mechanism}\n"
    return broker


def test_users_are_listed_and_deleted(users: SecureBroker, tmp_path: Path) -> None:
    command, file = OwnCli(users.bootstrap), tmp_path / "password"
    file.write_text("secret\n")
    command("user", "add", "gone", "--iterations", "4096", "--password-file", str(file))
    rows = command("user", "list", "--json").json
    assert {"user": "gone", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows
    assert [row["mechanism"] for row in rows if row["user"] == "dora"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert "deleted SCRAM-SHA-512" in command("user", "delete", "gone").out
    assert "user gone does not exist" in command("user", "delete", "gone", code=1).err
    assert "--password-file" in command("user", "add", "x", code=2).err
    assert "is empty" in command("user", "add", "x", "--password-file", "-", code=2).err
    assert "not one of" in command("user", "add", "x", "--mechanism", "MD5", code=2).err


# ---- logins


def client_file(directory: Path, broker: SecureBroker, listener: str, **more: str) -> tuple[str, ...]:
    """Return the flags of a command, Kafka's or ours, that logs in at a listener."""
    lines = {
        "security.protocol": PROTOCOLS[listener],
        "ssl.truststore.location": str(broker.ca),
        "ssl.truststore.type": "PEM",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    file = directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return "--bootstrap-server", broker.address_of(listener), "--command-config", str(file)


def jaas(module: str, **options: str) -> str:
    return " ".join([module, "required", *(f'{name}="{value}"' for name, value in options.items())]) + ";"


SCRAM_JAAS = jaas(SCRAM_MODULE, username="dora", password=SCRAM_PASSWORD)
PLAIN_MODULE = f"{COMMON}.plain.PlainLoginModule"


def test_our_commands(users: SecureBroker, tmp_path: Path) -> None:
    flags = client_file(tmp_path, users, "BOTH", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM_JAAS)
    assert "dora" in OwnCli("127.0.0.1:1")("user", "list", *flags).out


def unsecured_token() -> str:
    def segment(value: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{segment({'alg': 'none'})}.{segment({'sub': 'carol', 'exp': time.time() + 60})}."


def by_token(token: Callable[[], str], lives_s: float = 60) -> dict[str, Any]:
    return {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": lambda _: (token(), time.time() + lives_s)}


def by_password(mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {"sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": password}


def rdkafka(broker: SecureBroker, listener: str, login: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": PROTOCOLS[listener],
        "ssl.ca.location": str(broker.ca),
        "log_level": 0,
        **login,
    }


def plain_login(_: SecureBroker) -> dict[str, Any]:
    return by_password("PLAIN", "ann", PLAIN_PASSWORD)


def own_certificate(broker: SecureBroker) -> dict[str, Any]:
    return {"ssl.certificate.location": str(broker.client_pem), "ssl.key.location": str(broker.client_pem)}


LOGINS: Mapping[str, tuple[str, Callable[[SecureBroker], dict[str, Any]]]] = {
    "tls": ("TLS", lambda _: {}),
    "mutual": ("MUTUAL", own_certificate),
    "plain": ("BOTH", plain_login),
    "scram-512": ("BOTH", lambda _: by_password("SCRAM-SHA-512", "dora", SCRAM_PASSWORD)),
    "scram-256": ("SASL", lambda _: by_password("SCRAM-SHA-256", "dora", SCRAM_PASSWORD)),
    "unsecured-token": ("BOTH", lambda _: by_token(unsecured_token)),
    "RS256": ("SIGNED", lambda broker: by_token(lambda: broker.token(algorithm="RS256"))),
    "ES256": ("SIGNED", lambda broker: by_token(broker.token)),
}


def records(count: int, size: int = 100) -> list[Record]:
    return [Record(number % 2, None, os.urandom(size), (), CREATE_TIME_MS) for number in range(count)]


@pytest.mark.parametrize("name", LOGINS)
def test_librdkafka_writes_and_reads(users: SecureBroker, name: str) -> None:
    listener, login = LOGINS[name]
    address, config, topic = users.address_of(listener), rdkafka(users, listener, login(users)), f"rd-{name}"
    create_topic(users.bootstrap, topic, 2)
    written = records(100) + (records(12, BIG_BYTES) if name in ("tls", "scram-256") else [])
    confluent_write(address, topic, written, "none", config)
    assert by_partition(confluent_read(address, topic, 2, len(written), config)) == stored_in(written)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_python_writes_and_reads(users: SecureBroker, mechanism: str) -> None:
    user, password = ("ann", PLAIN_PASSWORD) if mechanism == "PLAIN" else ("dora", SCRAM_PASSWORD)
    config: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(users.ca),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    address, topic, written = users.address_of("BOTH"), f"py-{mechanism}", records(50)
    create_topic(users.bootstrap, topic, 2)
    kafka_python_write(address, topic, written, "none", **config)
    assert by_partition(kafka_python_read(address, topic, 2, 50, **config)) == stored_in(written)


JAVA = {
    "certificate": ("MUTUAL", {"ssl_keystore_type": "PEM"}),
    "plain": (
        "BOTH",
        {
            "sasl_mechanism": "PLAIN",
            "sasl_jaas_config": jaas(PLAIN_MODULE, username="ann", password=PLAIN_PASSWORD),
        },
    ),
    # Its sessions end while it writes, and it renews them.
    "scram": ("SHORTTLS", {"sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": SCRAM_JAAS}),
    "token": (
        "SASL",
        {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_jaas_config": jaas(
                f"{COMMON}.oauthbearer.OAuthBearerLoginModule", unsecuredLoginStringClaim_sub="carol"
            ),
        },
    ),
}


@pytest.mark.parametrize("name", JAVA)
def test_java_writes_and_reads(users: SecureBroker, tmp_path: Path, name: str) -> None:
    listener, more = JAVA[name]
    if name == "certificate":
        more = {**more, "ssl_keystore_location": str(users.client_pem)}
    flags, topic = client_file(tmp_path, users, listener, **more), f"java-{name}"
    renews, before, written = listener == "SHORTTLS", renewals(users), 0
    count, rate = (2500, 1000) if renews else (300, -1)
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", str(rate))
    # A JVM that starts slowly sends what is due at once, and may end before its session does.
    while written == 0 or (renews and renewals(users) == before):
        assert written < 10 * count, f"no session was renewed while {written} records were written"
        assert f"{count} records sent" in kafka_tool(PERFORMANCE, *flags, *load)
        written += count
    read = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(written))
    assert len(kafka_tool(CONSUMER, *flags, *read, "--timeout-ms", "20000").splitlines()) == written


def test_java_with_a_signed_token_from_a_file(users: SecureBroker, tmp_path: Path) -> None:
    token = tmp_path / "token.jwt"
    token.write_text(users.token(algorithm="RS256"))
    flags = client_file(
        tmp_path,
        users,
        "SIGNED",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=jaas(f"{COMMON}.oauthbearer.OAuthBearerLoginModule"),
        sasl_login_callback_handler_class=f"{COMMON}.oauthbearer.OAuthBearerLoginCallbackHandler",
        sasl_oauthbearer_jwt_retriever_class=f"{COMMON}.oauthbearer.FileJwtRetriever",
        sasl_oauthbearer_token_endpoint_url=token.as_uri(),
    )
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
    kafka_tool(allowed, TOPICS, *flags, "--create", "--topic", "java-signed", "--partitions", "1")
    assert "java-signed" in OwnCli(users.bootstrap)("topic", "list").out


# ---- sessions that end, and logins that fail


def renewals(broker: SecureBroker) -> int:
    """Successful re-authentications."""
    public = Region.attach(broker.runtime_dir / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
    return counter_page(public, processor(0)).get(Counter.COUNT_REAUTHENTICATIONS)


@pytest.mark.parametrize("listener", ["SHORTTLS", "SIGNED"])
def test_librdkafka_outlives_its_sessions(users: SecureBroker, listener: str) -> None:
    """A session ends in time, or with its token: the client logs in again on the connection that it has."""
    topic, before = f"renewed-{listener}", renewals(users)
    create_topic(users.bootstrap, topic, 1)
    login = by_password("SCRAM-SHA-512", "dora", SCRAM_PASSWORD)
    if listener == "SIGNED":
        login = by_token(lambda: users.token(lives_s=TOKEN_S), TOKEN_S)
    producer = confluent_kafka.Producer({**rdkafka(users, listener, login), "enable.idempotence": True})
    told: list[object] = []

    def is_renewed_twice() -> bool:
        producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
        producer.poll(0.02)
        return renewals(users) >= before + 2

    eventually(is_renewed_twice, "its sessions are renewed")
    assert producer.flush(PATIENCE_S) == 0
    assert set(told) == {None}
    values = confluent_read(users.bootstrap, topic, 1, len(told))
    assert [one.offset for one in values] == list(range(len(told)))


def test_librdkafka_with_a_token_of_another_key(users: SecureBroker) -> None:
    """And the same client gets in when the key set has changed: it is read anew."""
    stranger, said = Signer(), list[str]()
    login = {**by_token(lambda: users.token(by=stranger)), "error_cb": lambda error: said.append(str(error))}
    producer = confluent_kafka.Producer(rdkafka(users, "SIGNED", login))
    eventually(lambda: producer.poll(0.1) >= 0 and bool(said), "librdkafka hears that it is refused")
    assert any("invalid_token" in text for text in said), said
    fresh = users.keys.with_suffix(".new")
    keys = users.keys.read_text()
    try:
        fresh.write_text(json.dumps(stranger.set))
        fresh.replace(users.keys)
        assert producer.list_topics(timeout=PATIENCE_S).brokers
    finally:
        fresh.write_text(keys)
        fresh.replace(users.keys)


def test_java_with_a_wrong_password_stops_at_once(users: SecureBroker, tmp_path: Path) -> None:
    """It is told that the password is wrong: a call tries once, and does not try again and again."""
    wrong = jaas(PLAIN_MODULE, username="ann", password="wr0ng")
    flags = client_file(tmp_path, users, "BOTH", sasl_mechanism="PLAIN", sasl_jaas_config=wrong)

    def failures() -> int:
        """Failed authentications that the log tells of."""
        said = rf"connection \S*:{users.ports['BOTH']}-\S* on BOTH: failed authentication"
        return len(re.findall(said, users.output()))

    before = failures()
    with pytest.raises(ToolError, match=r"SaslAuthenticationException: Authentication failed"):
        kafka_tool(TOPICS, *flags, "--list")
    load = ("--topic", "never", "--num-records", str(SENDS), "--record-size", "10", "--throughput", "-1")
    said = kafka_tool_errors(PERFORMANCE, *flags, *load)
    assert "SaslAuthenticationException: Authentication failed" in said
    assert 2 <= failures() - before <= 1 + SENDS


# ---- SCRAM users, made by others


def logs_in(broker: SecureBroker, user: str, mechanism: str, password: str = SCRAM_PASSWORD) -> bool:
    said: list[str] = []
    login = {**by_password(mechanism, user, password), "error_cb": lambda error: said.append(str(error))}
    producer = confluent_kafka.Producer(rdkafka(broker, "BOTH", login))
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        producer.poll(0)
        if any("Authentication failed" in text for text in said):
            return False
        with contextlib.suppress(confluent_kafka.KafkaException):
            return bool(producer.list_topics(timeout=0.5).brokers)
    raise TimeoutError(said)


def test_kafkas_tool_makes_scram_users(broker: SecureBroker) -> None:
    whom = ("--entity-type", "users", "--entity-name", "by-java")
    tool = (CONFIGS, "--bootstrap-server", broker.bootstrap, *whom)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        given = f"{mechanism}=[iterations=8192,password={SCRAM_PASSWORD}]"
        kafka_tool(*tool, "--alter", "--add-config", given)
        assert f"{mechanism}=iterations=8192" in kafka_tool(*tool, "--describe")
        assert logs_in(broker, "by-java", mechanism)
    assert not logs_in(broker, "by-java", "SCRAM-SHA-512", "wr0ng")
    kafka_tool(*tool, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM-SHA-512" not in kafka_tool(*tool, "--describe")
    assert not logs_in(broker, "by-java", "SCRAM-SHA-512")
    assert logs_in(broker, "by-java", "SCRAM-SHA-256")


def test_librdkafka_makes_scram_users(broker: SecureBroker) -> None:
    admin, user = AdminClient({"bootstrap.servers": broker.bootstrap}), "by-librdkafka"
    kind = ScramMechanism.SCRAM_SHA_512
    upsertion = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(kind, 4096), SCRAM_PASSWORD.encode(), os.urandom(16)
    )
    assert admin.alter_user_scram_credentials([upsertion])[user].result(PATIENCE_S) is None
    described = admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [(kind, 4096)]
    assert logs_in(broker, user, "SCRAM-SHA-512")
    deletion = UserScramCredentialDeletion(user, kind)
    assert admin.alter_user_scram_credentials([deletion])[user].result(PATIENCE_S) is None
    with pytest.raises(confluent_kafka.KafkaException, match="RESOURCE_NOT_FOUND"):
        admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.alter_user_scram_credentials([deletion])[user].result(PATIENCE_S)
    few = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 100), b"x", os.urandom(16))
    with pytest.raises(confluent_kafka.KafkaException, match="iterations"):
        admin.alter_user_scram_credentials([few])[user].result(PATIENCE_S)
