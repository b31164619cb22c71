"""The manifest's part that tells a reader in the JVM how to fetch."""

from __future__ import annotations

from typing import Any

from mpbroker.reading.manifest import manifest_of
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import LocalFiles, TaskRange
from mpbroker.storage.reader import Bound
from tests.support.reading_queries import UNCOMMITTED

FETCHED = TaskRange("t", 0, 5, 15, b"an id of a topic")
IN_FILES = TaskRange("t", 0, 5, 5, None, LocalFiles("/logs/t-0", Bound(0, 0, 0)))


def manifest(task: TaskRange = FETCHED, **options: str) -> dict[str, Any]:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return manifest_of([task], parse_options({"subscribe": "t", "log.dir": "/logs", **given}))


def test_a_fetch_has_what_it_needs() -> None:
    found = manifest(kafka_bootstrap_servers="a:1, [::1]:2, b", **{"fetchOffset.numRetries": "7"})
    assert found["brokers"] == {
        "servers": ["a:1", "[::1]:2", "b:9092"],
        "client": {
            "client.id": "mpbroker-spark",
            "request.timeout.ms": "120000",
            "receive.buffer.bytes": "4194304",
        },
        "fetchBytes": 4 << 20,
        "retries": 7,
        "retryIntervalMs": 1000,
        "readCommitted": True,
    }
    (task,) = found["tasks"]
    assert (task["start"], task["end"], task["places"], task["aborted"]) == (5, 15, [], None)


def test_settings_have_the_names_and_forms_of_kafkas_client() -> None:
    brokers = manifest(
        kafka_bootstrap_servers="a:1",
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanisms="SCRAM-SHA-512",
        kafka_sasl_username="ann",
        kafka_sasl_password='a "b" \\c',
        kafka_ssl_ca_location=__file__,
        kafka_client_id="mine",
        kafka_unheard_of="x",
    )["brokers"]
    assert brokers["client"] == {
        "client.id": "mine",
        "request.timeout.ms": "120000",
        "receive.buffer.bytes": "4194304",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.location": __file__,
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a \\"b\\" \\\\c";',
    }


def test_only_files_may_be_read() -> None:
    servers = "kafka.bootstrap.servers"
    for options in ({}, {servers: "a:1", "readMode": "local"}, {servers: "unix:/broker"}):
        assert manifest(IN_FILES, **options, **UNCOMMITTED)["brokers"] is None


def test_python_alone_connects_to_a_unix_socket() -> None:
    declined = "kafka.bootstrap.servers is a Unix socket, to which only Python connects"
    assert manifest(kafka_bootstrap_servers="unix:/broker") == {"declined": declined}
