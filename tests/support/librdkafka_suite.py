"""librdkafka's own tests, built from the sources that an npm package of its makers carries.

The package is fetched and built once, into `build/librdkafka`. SSL is left out; so are the tests that need no
broker, which librdkafka runs with its own mock.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Collection
from functools import cache
from pathlib import Path

from mpbroker.config.broker import STANDARD_AUTHORIZER
from ops.bench.brokers import ROOT, Broker
from tests.support.client_tools import java_command, run

VERSION = "2.15.1"
PACKAGE = "https://registry.npmjs.org/@confluentinc/kafka-javascript/-/kafka-javascript-1.10.1.tgz"
SHA256 = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
SOURCES = "package/deps/librdkafka/"
BUILT = ROOT / "build" / "librdkafka"
LEFT_OUT = ("--disable-ssl", "--disable-gssapi", "--disable-curl", "--disable-optimization")
FETCH_TIMEOUT_S = 120
# What the suite's own clusters have (tests/scenarios), ACLs, and timeouts that end within a test's.
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
TOOLS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
# Those of share groups (KIP-932), and those that bring a broker of their own.
NOT_ASKED = ",".join(("0139", "0147", "0150", *(f"{number:04}" for number in range(155, 200))))
ASIDE = 4
SUITE_TIMEOUT_S = 3600


@cache
def suite() -> Path:
    """The directory of the suite's tests, with its program: built here when it is asked for first."""
    BUILT.mkdir(parents=True, exist_ok=True)
    tree, made = BUILT / VERSION, BUILT / "made"
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != VERSION:
            _unpack(tree)
            run(["./configure", *LEFT_OUT], cwd=tree)
            for part in (["libs"], ["-C", "tests", "test-runner"]):
                run(["make", f"-j{os.cpu_count()}", *part], cwd=tree)
            made.write_text(VERSION)
    return tree / "tests"


def _unpack(tree: Path) -> None:
    with urllib.request.urlopen(PACKAGE, timeout=FETCH_TIMEOUT_S) as answer:
        package = answer.read()
    assert hashlib.sha256(package).hexdigest() == SHA256, f"{PACKAGE} has changed"
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        members = [each for each in archive.getmembers() if each.name.startswith(SOURCES)]
        for each in members:
            each.name = each.name.removeprefix(SOURCES)
        archive.extractall(tree, members=members, filter="data")


def _tools(directory: Path) -> Path:
    """Make the commands of Kafka's that the suite's tests run."""
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name, main_class in TOOLS.items():
        command = directory / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(java_command(main_class))} "$@"\n')
        command.chmod(0o755)
    return directory


def run_suite(broker: Broker, tests: Collection[str] = (), *, aside: int = ASIDE) -> dict[str, str]:
    """Run the suite's tests, or those of these numbers; return how each one ended, by its name.

    What it prints is in `suite.log` beside the broker's.
    """
    directory = broker.directory
    configuration, report = directory / "test.conf", directory / "report.json"
    configuration.write_text(f"bootstrap.servers={broker.bootstrap}\ntest.topic.random=true\n")
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "BROKERS": broker.bootstrap,
        "KAFKA_PATH": str(_tools(directory / "kafka")),
        "TEST_CONSUMER_GROUP_PROTOCOL": "consumer",
        "TEST_KAFKA_VERSION": "4.3.0",
        "TEST_REPORT": str(report),
        "TESTS_SKIP": NOT_ASKED,
        "RDKAFKA_TEST_CONF": str(configuration),
        "LD_LIBRARY_PATH": f"{suite().parent / 'src'}:{suite().parent / 'src-cpp'}",
    }
    if tests:
        environment["TESTS"] = ",".join(tests)
    command = ["./test-runner", f"-p{aside}", "-L", "-E", "-K"]
    with open(directory / "suite.log", "ab") as output:
        subprocess.run(
            command,
            cwd=suite(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=SUITE_TIMEOUT_S,
            check=False,
        )
    ended = json.loads(report.read_text())["tests"]
    return {name: str(one["state"]) for name, one in ended.items() if name != "<MAIN>"}
