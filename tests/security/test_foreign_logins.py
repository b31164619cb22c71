"""Logins by clients that nobody here wrote: signed tokens, Java's mechanisms, and who makes SCRAM users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

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
from tests.security.test_real_clients import CONSUMER, PATIENCE_S, PERFORMANCE, settings
from tests.support.client_tools import RUN_TIMEOUT_S, ToolError, eventually, java_command, kafka_tool, run
from tests.support.real_brokers import create_topic
from tests.support.secure_broker import PLAIN_PASSWORD, PROTOCOLS, SCRAM_PASSWORD, SecureBroker
from tests.support.tokens import Signer

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
COMMON = "org.apache.kafka.common.security"
SENDS = 5
TOKEN_S = 1.5


def failures(broker: SecureBroker, listener: str) -> int:
    """Failed authentications that the log tells of."""
    port = broker.ports[listener]
    said = rf"connection \S*:{port}-\S* on {listener}: failed authentication"
    return len(re.findall(said, broker.output()))


# ---- tokens signed by a key of a set, through librdkafka


def by_token(
    broker: SecureBroker, token: Callable[[], str], said: list[str] | None = None, lives_s: float = 60
) -> confluent_kafka.Producer:
    def oauth_cb(_config: str) -> tuple[str, float]:
        return token(), time.time() + lives_s

    errors = said if said is not None else []
    config = settings(broker, "SIGNED", sasl_mechanisms="OAUTHBEARER")
    return confluent_kafka.Producer(
        {**config, "oauth_cb": oauth_cb, "error_cb": lambda e: errors.append(str(e)), "log_level": 0}
    )


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_librdkafka_with_a_signed_token(broker: SecureBroker, algorithm: str) -> None:
    topic = f"signed-{algorithm}"
    create_topic(broker.bootstrap, topic, 1)
    producer = by_token(broker, lambda: broker.token(algorithm=algorithm))
    told: list[object] = []
    for number in range(100):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert told == [None] * 100


def test_librdkafka_with_a_token_of_another_key(broker: SecureBroker) -> None:
    """And the same client gets in when the key set has changed: it is read anew."""
    stranger, said = Signer(), list[str]()
    producer = by_token(broker, lambda: broker.token(by=stranger), said)
    eventually(lambda: producer.poll(0.1) >= 0 and bool(said), "librdkafka hears that it is refused")
    assert any("invalid_token" in text for text in said), said
    fresh = broker.keys.with_suffix(".new")
    keys = broker.keys.read_text()
    try:
        fresh.write_text(json.dumps(stranger.set))
        fresh.replace(broker.keys)
        assert producer.list_topics(timeout=PATIENCE_S).brokers
    finally:
        fresh.write_text(keys)
        fresh.replace(broker.keys)


def test_librdkafka_outlives_its_tokens(broker: SecureBroker) -> None:
    """A session ends with its token: the client comes with another one on the connection that it has."""
    create_topic(broker.bootstrap, "renewed", 1)
    before = renewals(broker)
    producer = by_token(broker, lambda: broker.token(lives_s=TOKEN_S), lives_s=TOKEN_S)
    told: list[object] = []
    until = time.monotonic() + 3 * TOKEN_S
    while time.monotonic() < until:
        producer.produce("renewed", b"x", on_delivery=lambda error, _: told.append(error))
        producer.poll(0.02)
    assert producer.flush(PATIENCE_S) == 0
    assert set(told) == {None}
    assert renewals(broker) > before


def renewals(broker: SecureBroker) -> int:
    """Successful re-authentications."""
    public = Region.attach(broker.runtime_dir / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
    return counter_page(public, processor(0)).get(Counter.COUNT_REAUTHENTICATIONS)


# ---- Java


def java_config(directory: Path, broker: SecureBroker, listener: str, mechanism: str, jaas: str) -> Path:
    file = directory / f"{mechanism}.properties"
    file.write_text(
        f"security.protocol={PROTOCOLS[listener]}\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        f"ssl.truststore.location={broker.ca}\nssl.truststore.type=PEM\n"
    )
    return file


def plain(password: str) -> str:
    return f'{COMMON}.plain.PlainLoginModule required username="ann" password="{password}";'


JAVA = {
    "PLAIN": ("BOTH", plain(PLAIN_PASSWORD)),
    "OAUTHBEARER": (
        "SASL",
        f'{COMMON}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="carol";',
    ),
}


@pytest.mark.parametrize("mechanism", JAVA)
def test_java_writes_and_reads(broker: SecureBroker, tmp_path: Path, mechanism: str) -> None:
    listener, jaas = JAVA[mechanism]
    config = java_config(tmp_path, broker, listener, mechanism, jaas)
    topic, count = f"java-{mechanism}", 500
    create_topic(broker.bootstrap, topic, 1)
    server = ("--bootstrap-server", broker.address_of(listener), "--command-config", str(config))
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    assert f"{count} records sent" in kafka_tool(PERFORMANCE, *server, *load)
    read = ("--topic", topic, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000")
    assert len(kafka_tool(CONSUMER, *server, *read).splitlines()) == count


def test_java_with_a_signed_token_from_a_file(broker: SecureBroker, tmp_path: Path) -> None:
    token = tmp_path / "token.jwt"
    token.write_text(broker.token(algorithm="RS256"))
    jaas = f"{COMMON}.oauthbearer.OAuthBearerLoginModule required;"
    config = java_config(tmp_path, broker, "SIGNED", "OAUTHBEARER", jaas)
    with config.open("a") as file:
        file.write(
            f"sasl.login.callback.handler.class={COMMON}.oauthbearer.OAuthBearerLoginCallbackHandler\n"
            f"sasl.oauthbearer.jwt.retriever.class={COMMON}.oauthbearer.FileJwtRetriever\n"
            f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
        )
    server = ("--bootstrap-server", broker.address_of("SIGNED"), "--command-config", str(config))
    java, *rest = java_command(TOPICS, *server, "--create", "--topic", "java-signed", "--partitions", "1")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
    run([java, allowed, *rest])
    assert "java-signed" in kafka_tool(TOPICS, "--bootstrap-server", broker.bootstrap, "--list")


def test_java_with_a_wrong_password_stops_at_once(broker: SecureBroker, tmp_path: Path) -> None:
    """It is told that the password is wrong: a call tries once, and does not try again and again."""
    config = java_config(tmp_path, broker, "BOTH", "PLAIN", plain("wr0ng"))
    server = ("--bootstrap-server", broker.address_of("BOTH"), "--command-config", str(config))
    before = failures(broker, "BOTH")
    with pytest.raises(ToolError, match=r"SaslAuthenticationException: Authentication failed"):
        kafka_tool(TOPICS, *server, "--list")
    load = ("--topic", "never", "--num-records", str(SENDS), "--record-size", "10", "--throughput", "-1")
    done = subprocess.run(
        java_command(PERFORMANCE, *server, *load),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert "SaslAuthenticationException: Authentication failed" in done.stdout + done.stderr
    assert 2 <= failures(broker, "BOTH") - before <= 1 + SENDS


# ---- SCRAM users, made by others


def scram_login(broker: SecureBroker, user: str, mechanism: str, password: str = SCRAM_PASSWORD) -> bool:
    said: list[str] = []
    more = {"sasl_mechanisms": mechanism, "sasl_username": user, "sasl_password": password}
    producer = confluent_kafka.Producer(
        {**settings(broker, "BOTH", **more), "error_cb": lambda e: said.append(str(e)), "log_level": 0}
    )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        producer.poll(0)
        if any("Authentication failed" in text for text in said):
            return False
        try:
            return bool(producer.list_topics(timeout=0.5).brokers)
        except confluent_kafka.KafkaException:
            continue
    raise TimeoutError(said)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafkas_tool_makes_scram_users(broker: SecureBroker, mechanism: str) -> None:
    user = f"by-java-{mechanism.lower()}"
    whom = ("--entity-type", "users", "--entity-name", user)
    server = ("--bootstrap-server", broker.bootstrap)
    given = f"{mechanism}=[iterations=8192,password={SCRAM_PASSWORD}]"
    kafka_tool(CONFIGS, *server, "--alter", "--add-config", given, *whom)
    assert f"{mechanism}=iterations=8192" in kafka_tool(CONFIGS, *server, "--describe", *whom)
    assert scram_login(broker, user, mechanism)
    assert not scram_login(broker, user, mechanism, "wr0ng")
    kafka_tool(CONFIGS, *server, "--alter", "--delete-config", mechanism, *whom)
    assert mechanism not in kafka_tool(CONFIGS, *server, "--describe", *whom)
    assert not scram_login(broker, user, mechanism)


def test_librdkafka_makes_scram_users(broker: SecureBroker) -> None:
    admin, user = AdminClient({"bootstrap.servers": broker.bootstrap}), "by-librdkafka"
    kind = ScramMechanism.SCRAM_SHA_512
    upsertion = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(kind, 4096), SCRAM_PASSWORD.encode(), os.urandom(16)
    )
    assert admin.alter_user_scram_credentials([upsertion])[user].result(PATIENCE_S) is None
    described = admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [(kind, 4096)]
    assert scram_login(broker, user, "SCRAM-SHA-512")
    deletion = UserScramCredentialDeletion(user, kind)
    assert admin.alter_user_scram_credentials([deletion])[user].result(PATIENCE_S) is None
    with pytest.raises(confluent_kafka.KafkaException, match="RESOURCE_NOT_FOUND"):
        admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.alter_user_scram_credentials([deletion])[user].result(PATIENCE_S)
    few = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 100), b"x", os.urandom(16))
    with pytest.raises(confluent_kafka.KafkaException, match="iterations"):
        admin.alter_user_scram_credentials([few])[user].result(PATIENCE_S)
