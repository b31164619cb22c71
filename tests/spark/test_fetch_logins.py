"""Fetching in the JVM from brokers with TLS and SASL: by options of queries, and all that its client can."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mpbroker.protocol.uuids import uuid_text
from mpbroker.storage.checkpoints import read_topic_id
from ops.bench.connector import connector_jars
from ops.setup import maven
from ops.setup.jvm_reader import SHORT_LIVED, spark_jars
from spark_integration.jvm.jar import jar_path
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.programs import ran
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import PLAIN_PASSWORD, PROTOCOLS, SCRAM_PASSWORD, SecureBroker

TOPIC, RECORDS = "guarded", 100
COMMON = "org.apache.kafka.common.security"
STORE_PASSWORD = "5tore-Pa55word"
PLAIN = f'{COMMON}.plain.PlainLoginModule required username="ann" password="{PLAIN_PASSWORD}";'
SCRAM = f'{COMMON}.scram.ScramLoginModule required username="dora" password="{SCRAM_PASSWORD}";'
OAUTH = f"{COMMON}.oauthbearer.OAuthBearerLoginModule"

Options = dict[str, str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path_factory.mktemp("broker"))) as running:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            flags = ("--mechanism", mechanism, "--password-file", "-")
            OwnCli(running.bootstrap)("user", "add", "dora", *flags, stdin=SCRAM_PASSWORD.encode() + b"\n")
        create_topic(running.bootstrap, TOPIC, 1)
        produce(running.bootstrap, TOPIC, [b"%d" % number for number in range(RECORDS)], 1)
        yield running


def truststore(broker: SecureBroker) -> Path:
    path = broker.directory / "trusted.p12"
    one = pkcs12.PKCS12Certificate(broker.authority.certificate, b"ca")
    path.write_bytes(
        pkcs12.serialize_java_truststore([one], BestAvailableEncryption(STORE_PASSWORD.encode()))
    )
    return path


def keystore(broker: SecureBroker) -> Path:
    path = broker.directory / "client.p12"
    name, key, chain = b"client", broker.client.key, broker.client.certificate
    secret = BestAvailableEncryption(STORE_PASSWORD.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(name, key, chain, None, secret))
    return path


def pem(broker: SecureBroker) -> Options:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.ca)}


def pem_without_type(broker: SecureBroker) -> Options:
    return {"ssl.truststore.location": str(broker.ca)}


def pem_inline(broker: SecureBroker) -> Options:
    return {"ssl.truststore.certificates": broker.authority.pem.decode()}


def store(broker: SecureBroker) -> Options:
    return {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(truststore(broker)),
        "ssl.truststore.password": STORE_PASSWORD,
    }


def own_pem(broker: SecureBroker) -> Options:
    return pem(broker) | {"ssl.keystore.location": str(broker.client_pem)}


def own_store(broker: SecureBroker) -> Options:
    return store(broker) | {
        "ssl.keystore.location": str(keystore(broker)),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
    }


def sasl(mechanism: str, **more: str) -> Callable[[SecureBroker], Options]:
    jaas = PLAIN if mechanism == "PLAIN" else SCRAM
    return lambda _broker: {"sasl.mechanism": mechanism, **(more or {"sasl.jaas.config": jaas})}


def librdkafkas(_broker: SecureBroker) -> Options:
    return {"sasl.mechanisms": "PLAIN", "sasl.username": "ann", "sasl.password": PLAIN_PASSWORD}


def unsecured(_broker: SecureBroker) -> Options:
    jaas = f'{OAUTH} required unsecuredLoginStringClaim_sub="carol";'
    return {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": jaas}


def jks(broker: SecureBroker) -> Options:
    path = broker.directory / "trusted.jks"
    if not path.exists():
        tool = ["keytool", "-importcert", "-noprompt", "-file", broker.ca, "-keystore", path]
        ran([*tool, "-storetype", "JKS", "-storepass", STORE_PASSWORD], check=True)
    return {"ssl.truststore.location": str(path), "ssl.truststore.password": STORE_PASSWORD}


def both(broker: SecureBroker) -> Options:
    return pem_inline(broker) | sasl("SCRAM-SHA-512")(broker)


@pytest.mark.parametrize(
    ("listener", "protocol", "given"),
    [
        ("TLS", "SSL", pem),
        ("TLS", "SSL", pem_without_type),
        ("TLS", "SSL", pem_inline),
        ("TLS", "SSL", store),
        ("MUTUAL", "SSL", own_pem),
        ("MUTUAL", "SSL", own_store),
        ("SASL", "SASL_PLAINTEXT", sasl("PLAIN")),
        ("SASL", "SASL_PLAINTEXT", librdkafkas),
        ("SASL", "SASL_PLAINTEXT", sasl("SCRAM-SHA-256")),
        ("BOTH", "SASL_SSL", both),
        # Python, which plans, connects to these by the JVM.
        ("TLS", "SSL", jks),
        ("SASL", "SASL_PLAINTEXT", unsecured),
    ],
)
def test_queries_log_in(
    spark: SparkSession,
    broker: SecureBroker,
    listener: str,
    protocol: str,
    given: Callable[[SecureBroker], Options],
) -> None:
    options = {"bootstrap.servers": broker.address_of(listener), "security.protocol": protocol}
    options |= given(broker)
    reader = spark.read.format("mpbroker").option("subscribe", TOPIC).option("accelerated", "true")
    frame = reader.options(**{f"kafka.{name}": value for name, value in options.items()}).load()
    assert "by its JVM reader, fetching" in frame._jdf.queryExecution().executedPlan().toString()
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("listener", "given", "expected"),
    [
        ("SIGNED", lambda broker: unsecured(broker) | pem(broker), "(?i)authentication.*token"),
        ("SASL", lambda _broker: {"sasl.mechanism": "GSSAPI"}, r"do not fit together.*KafkaClient"),
        # Kafka's default is GSSAPI.
        ("SASL", lambda _broker: {}, r"do not fit together.*KafkaClient"),
        # The JVM connects for Python, and says what it met.
        (
            "SASL",
            lambda broker: unsecured(broker) | {"bootstrap.servers": "nowhere.invalid:9092"},
            "cannot connect to nowhere.invalid:9092: the driver's host does not know the name",
        ),
        (
            "SASL",
            lambda broker: unsecured(broker) | {"bootstrap.servers": "127.0.0.1:1"},
            "cannot connect to 127.0.0.1:1: the connection was refused",
        ),
        ("SASL", lambda _broker: {"sasl.mechanism": "MAGIC"}, r"kafka\.sasl\.mechanism=MAGIC is not one of"),
    ],
)
def test_a_refused_login_says_why(
    spark: SparkSession,
    broker: SecureBroker,
    listener: str,
    given: Callable[[SecureBroker], Options],
    expected: str,
) -> None:
    options = {"bootstrap.servers": broker.address_of(listener), "security.protocol": PROTOCOLS[listener]}
    options |= given(broker)
    reader = spark.read.format("mpbroker").option("subscribe", TOPIC).option("accelerated", "true")
    reader = reader.option("fetchOffset.retryIntervalMs", "0")
    with pytest.raises(PySparkException, match=expected):
        reader.options(**{f"kafka.{name}": value for name, value in options.items()}).load().collect()


def test_a_stream_is_planned_by_a_login_of_the_jvm(
    spark: SparkSession, broker: SecureBroker, tmp_path: Path
) -> None:
    where = {"bootstrap.servers": broker.address_of("SASL"), "security.protocol": "SASL_PLAINTEXT"}
    options = {f"kafka.{name}": value for name, value in (where | unsecured(broker)).items()}
    more = {"subscribe": TOPIC, "startingOffsets": "earliest", "accelerated": "true"}
    stream = spark.readStream.format("mpbroker").options(**options, **more).load()
    sink = stream.writeStream.format("memory").queryName("read_after_a_login")
    query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert spark.table("read_after_a_login").count() == RECORDS


@pytest.mark.process
def test_all_that_kafkas_client_can_do(broker: SecureBroker, tmp_path: Path) -> None:
    """The shaded client takes Kafka's names of classes, and shares a JVM with another version of itself."""
    token = tmp_path / "token.jwt"
    token.write_text(broker.token(algorithm="RS256", lives_s=3600))
    signed = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH} required;",
        "sasl.login.callback.handler.class": f"{COMMON}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    scram = sasl("SCRAM-SHA-256")(broker)
    wrong = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN.replace(PLAIN_PASSWORD, "wrong")}
    logins = [
        ("SASL", "SASL_PLAINTEXT", scram | {"kafka.first": "true"}),
        ("SASL", "SASL_PLAINTEXT", unsecured(broker)),
        ("SASL", "SASL_PLAINTEXT", scram),
        ("SASL", "SASL_PLAINTEXT", unsecured(broker) | {"kafka.first": "true"}),
        ("SIGNED", "SASL_SSL", signed | pem(broker)),
        ("TLS", "SSL", jks(broker)),
        ("SASL", "SASL_PLAINTEXT", wrong),
    ]
    files = [file_of(tmp_path / f"{number}.properties", broker, *one) for number, one in enumerate(logins)]
    topic_id = read_topic_id(broker.log_dir / f"{TOPIC}-0")
    assert topic_id is not None
    classes = ":".join([str(jar_path()), *connector_jars().split(","), f"{spark_jars()}/*"])
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
    command = [maven.java(), *SHORT_LIVED, allowed, f"-Djava.io.tmpdir={tmp_path}", "-cp", classes]
    command.append(Path(__file__).with_name("Logins.java"))
    with relays(tmp_path) as others:
        printed = ran([*command, TOPIC, uuid_text(topic_id), RECORDS, *files], check=True).stdout.splitlines()
        assert [path.exists() for path in others] == [True, True, False, False]
    found = [line.removeprefix("login: ") for line in printed if line.startswith("login: ")]
    works = f"fetched {RECORDS} listed "
    assert [line.startswith(works) for line in found] == [True] * 6 + [False], printed
    assert "authentication failed" in found[6]


@contextmanager
def relays(parent: Path) -> Iterator[list[Path]]:
    """Make directories of relays of other JVMs: one listens, one is about to, two were killed."""
    paths = [parent / f"mpbroker-relay{number}" for number in range(4)]
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as dead:
        for path in paths:
            path.mkdir(0o700)
        listening.bind(str(paths[0] / "socket"))
        listening.listen()
        dead.bind(str(paths[2] / "socket"))
        for path in (paths[0], *paths[2:]):
            os.utime(path, (0, 0))
        yield paths


def file_of(path: Path, broker: SecureBroker, listener: str, protocol: str, given: Options) -> Path:
    settings = {"bootstrap.servers": broker.address_of(listener), "security.protocol": protocol, **given}
    # A file of properties escapes line ends as JSON does.
    path.write_text("".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()))
    return path
