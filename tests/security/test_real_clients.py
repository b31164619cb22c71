"""Clients that nobody here wrote, over TLS and SASL; and the command that makes their users."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.client_tools import kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import stop_cleanly
from tests.support.secure_broker import (
    JAAS,
    KEY_PASSWORD,
    PLAIN_PASSWORD,
    PROTOCOLS,
    REAUTH_MS,
    SCRAM_PASSWORD,
    TOKEN_SECRET,
    SecureBroker,
)

ROOT = Path(__file__).parents[2]
BIG_BYTES = 900_000


def command(broker: SecureBroker, *arguments: str, stdin: str = "", code: int = 0) -> str:
    """An `mpbroker` command against the plain listener; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module", name="users")
def _users(broker: SecureBroker) -> SecureBroker:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        flags = ("--mechanism", mechanism, "--password-file", "-")
        said = command(broker, "user", "add", "dora", *flags, stdin=f"{SCRAM_PASSWORD}\n")
        assert said == f"user dora can log in with {mechanism}\n"
    return broker


def test_users_are_listed_and_deleted(users: SecureBroker, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    command(users, "user", "add", "gone", "--iterations", "4096", "--password-file", str(file))
    rows = json.loads(command(users, "user", "list", "--json"))
    assert {"user": "gone", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows
    assert [row["mechanism"] for row in rows if row["user"] == "dora"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert "deleted SCRAM-SHA-512" in command(users, "user", "delete", "gone")
    assert "there is no such user" in command(users, "user", "delete", "gone", code=1)
    assert "--password-file" in command(users, "user", "add", "x", code=2)
    assert "is empty" in command(users, "user", "add", "x", "--password-file", "-", code=2)
    assert "not one of" in command(users, "user", "add", "x", "--mechanism", "MD5", code=2)


def test_the_commands_log_in(users: SecureBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.location={users.ca}\nssl.truststore.type=PEM\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="dora" password="{SCRAM_PASSWORD}";\n'
    )
    said = command(users, "user", "list", "-b", users.address_of("BOTH"), "--command-config", str(config))
    assert "dora" in said


# ---- librdkafka


def settings(broker: SecureBroker, listener: str, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": PROTOCOLS[listener],
        "ssl.ca.location": str(broker.ca),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def token(_config: str) -> tuple[str, float]:
    def segment(value: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    expires = time.time() + 60
    return f"{segment({'alg': 'none'})}.{segment({'sub': 'carol', 'exp': expires})}.", expires


WAYS = {
    "tls": ("TLS", {}),
    "mutual": ("MUTUAL", {"own": True}),
    "plain": ("BOTH", {"sasl_mechanisms": "PLAIN", "sasl_username": "ann", "sasl_password": PLAIN_PASSWORD}),
    "scram-512": (
        "BOTH",
        {"sasl_mechanisms": "SCRAM-SHA-512", "sasl_username": "dora", "sasl_password": SCRAM_PASSWORD},
    ),
    "scram-256": (
        "SASL",
        {"sasl_mechanisms": "SCRAM-SHA-256", "sasl_username": "dora", "sasl_password": SCRAM_PASSWORD},
    ),
    "token": ("BOTH", {"sasl_mechanisms": "OAUTHBEARER"}),
}


def way(broker: SecureBroker, name: str) -> dict[str, Any]:
    listener, more = WAYS[name]
    more = dict(more)
    if more.pop("own", False):
        more |= {
            "ssl_certificate_location": str(broker.client_pem),
            "ssl_key_location": str(broker.client_pem),
        }
    found = settings(broker, listener, **more)
    if name == "token":
        found["oauth_cb"] = token
    return found


@pytest.mark.parametrize("name", WAYS)
def test_librdkafka_writes_and_reads(users: SecureBroker, name: str) -> None:
    config = way(users, name)
    admin = AdminClient(config)
    topic = f"rd-{name}"
    if name == "token":
        admin.poll(0)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    producer = confluent_kafka.Producer({**config, "message.max.bytes": 1_000_000, "linger.ms": 5})
    values = [os.urandom(100) for _ in range(500)] + [os.urandom(BIG_BYTES) for _ in range(12)]
    failures: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % 2,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failures
    consumer = confluent_kafka.Consumer({**config, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(2)])
    got: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < len(values) and time.monotonic() < deadline:
        got += [message.value() or b"" for message in consumer.consume(100, timeout=0.5)]
    consumer.close()
    assert sorted(got) == sorted(values)


def test_librdkafka_with_a_wrong_password(users: SecureBroker) -> None:
    said: list[str] = []
    config = way(users, "scram-512") | {"sasl.password": "wrong", "error_cb": lambda e: said.append(str(e))}
    producer = confluent_kafka.Producer(config)
    deadline = time.monotonic() + PATIENCE_S
    while not said and time.monotonic() < deadline:
        producer.poll(0.1)
    assert "Authentication failed during authentication due to invalid credentials" in said[0]


def test_librdkafka_outlives_its_session(users: SecureBroker) -> None:
    config = settings(
        users,
        "SHORTTLS",
        sasl_mechanisms="SCRAM-SHA-512",
        sasl_username="dora",
        sasl_password=SCRAM_PASSWORD,
    )
    admin = AdminClient(config)
    admin.create_topics([NewTopic("rd-short", 1, 1)])["rd-short"].result(PATIENCE_S)
    producer = confluent_kafka.Producer({**config, "enable.idempotence": True})
    failures: list[object] = []
    sent, until = 0, time.monotonic() + 3 * REAUTH_MS / 1000
    while time.monotonic() < until:
        producer.produce("rd-short", b"x", on_delivery=lambda e, _: failures.append(e) if e else None)
        producer.poll(0.02)
        sent += 1
    assert producer.flush(PATIENCE_S) == 0
    assert not failures
    consumer = confluent_kafka.Consumer({**config, "group.id": "x"})
    assert consumer.get_watermark_offsets(
        confluent_kafka.TopicPartition("rd-short", 0), timeout=PATIENCE_S
    ) == (0, sent)
    consumer.close()


# ---- others


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_python(users: SecureBroker, mechanism: str) -> None:
    user, password = ("ann", PLAIN_PASSWORD) if mechanism == "PLAIN" else ("dora", SCRAM_PASSWORD)
    config: dict[str, Any] = {
        "bootstrap_servers": users.address_of("BOTH"),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(users.ca),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    topic = f"py-{mechanism}"
    producer = kafka.KafkaProducer(**config)
    for number in range(50):
        producer.send(topic, str(number).encode()).get(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **config)
    values = []
    for message in consumer:
        values.append(int(message.value))
        if len(values) == 50:
            break
    consumer.close()
    assert values == list(range(50))


PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize("listener", ["SASL", "MUTUAL", "SHORTTLS"])
def test_java_clients(users: SecureBroker, tmp_path: Path, listener: str) -> None:
    """SASL alone, certificates on both sides, and sessions that Java renews while it writes."""
    lines = [f"ssl.truststore.location={users.ca}", "ssl.truststore.type=PEM"]
    if listener == "MUTUAL":
        lines += [
            "security.protocol=SSL",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={users.client_pem}",
        ]
    else:
        lines += [
            f"security.protocol={'SASL_SSL' if listener == 'SHORTTLS' else 'SASL_PLAINTEXT'}",
            "sasl.mechanism=SCRAM-SHA-512",
            f'sasl.jaas.config={SCRAM_MODULE} required username="dora" password="{SCRAM_PASSWORD}";',
        ]
    config = tmp_path / "java.properties"
    config.write_text("\n".join(lines) + "\n")
    topic, count, rate = f"java-{listener}", 4000, 1000
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", str(rate))
    server = ("--bootstrap-server", users.address_of(listener))
    assert f"{count} records sent" in kafka_tool(PERFORMANCE, *server, "--command-config", str(config), *load)
    read = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count))
    printed = kafka_tool(CONSUMER, *server, "--command-config", str(config), *read, "--timeout-ms", "20000")
    assert len(printed.splitlines()) == count


def test_users_outlive_the_broker(tmp_path: Path) -> None:
    broker = SecureBroker(tmp_path / "broker", processors=2)
    try:
        broker.start()
        command(broker, "user", "add", "dora", "--password-file", "-", stdin=f"{SCRAM_PASSWORD}\n")
        stop_cleanly(broker)
        broker.start()
        for _ in range(6):
            producer = confluent_kafka.Producer(way(broker, "scram-512"))
            assert producer.list_topics(timeout=PATIENCE_S).brokers
        stop_cleanly(broker)
    finally:
        broker.kill()


# ---- secrecy

SECRETS = (PLAIN_PASSWORD, SCRAM_PASSWORD, KEY_PASSWORD, TOKEN_SECRET, "PRIVATE KEY", JAAS)


def test_no_secret_is_ever_shown(users: SecureBroker) -> None:
    """Logs, arguments, environment and the public region; the metadata log has no password either."""
    for name in ("scram-512", "plain"):
        for password in (None, "wr0ng-Pa55word"):
            more = {} if password is None else {"sasl.password": password}
            producer = confluent_kafka.Producer(way(users, name) | more)
            with contextlib.suppress(confluent_kafka.KafkaException):
                producer.list_topics(timeout=1.5)
    places = {"log": users.output_path.read_bytes()}
    for member in users.tree().members():
        with contextlib.suppress(psutil.NoSuchProcess):
            places[f"arguments of {member.pid}"] = "\0".join(member.cmdline()).encode()
            places[f"environment of {member.pid}"] = Path(f"/proc/{member.pid}/environ").read_bytes()
    for path in (*users.runtime_dir.rglob("*"), *users.log_dir.rglob("*")):
        if path.is_file():
            places[str(path)] = path.read_bytes()
    assert any(path.endswith("public") for path in places), sorted(places)
    for place, content in places.items():
        for secret in (*SECRETS, "wr0ng-Pa55word"):
            assert secret.encode() not in content, f"{place} has {secret[:3]}…"
    admin = AdminClient({"bootstrap.servers": users.bootstrap})
    described = admin.describe_configs(
        [confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.BROKER, "1")]
    )
    for future in described.values():
        found = future.result(PATIENCE_S)
        for name in ("ssl.key.password", "delegation.token.secret.key"):
            assert found[name].is_sensitive
            assert found[name].value is None
        assert not any(
            secret in str(entry.value) + str(entry.synonyms) for entry in found.values() for secret in SECRETS
        )
