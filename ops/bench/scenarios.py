"""The loads of the bench: how each load is prepared on a broker, run and measured."""

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from ops.bench import frames
from ops.bench.brokers import Broker, BrokerError

NATIVE = Path(__file__).parent / "native"
BIN = Path(__file__).parent / "bin"
GENERATOR = BIN / "load"

TOPIC_TIMEOUT_S = 30
LOAD_GRACE_S = 60
WARMUP_S = 0.5

# As much as the fastest broker writes, or a little more.
PAGE_CACHE_BYTES_PER_S = 1_500_000_000
PAGE_CACHE_BLOCK_BYTES = 1 << 24

FETCH_BYTES = 1 << 20
FETCH_TOPIC_BYTES = 16 << 20


class LoadError(Exception):
    """The generator could not run or saw a wrong response."""


@dataclass(frozen=True)
class Scenario:
    """One load. `kind` is produce (one record of `value_bytes` per request, to the topic's partitions in
    turn), fetch (`value_bytes` per request), or connect (a new connection for each request, an ApiVersions).
    """

    name: str
    kind: str
    value_bytes: int
    connections: int
    partitions: int = 1

    @property
    def bulk(self) -> bool:
        """Return whether the load is measured in bytes, not in requests."""
        return self.value_bytes >= 16_384


SCENARIOS: Sequence[Scenario] = (
    Scenario("produce-100B-1", "produce", 100, 1),
    Scenario("produce-100B-8", "produce", 100, 8),
    Scenario("produce-100B-64", "produce", 100, 64),
    Scenario("produce-100B-256", "produce", 100, 256),
    Scenario("produce-100B-64-over-64", "produce", 100, 64, 64),
    Scenario("produce-100B-64-over-1000", "produce", 100, 64, 1000),
    Scenario("produce-16KiB-8", "produce", 16_384, 8),
    Scenario("produce-16KiB-32", "produce", 16_384, 32),
    Scenario("produce-900KB-1", "produce", 900_000, 1),
    Scenario("produce-900KB-8", "produce", 900_000, 8),
    Scenario("fetch-1MiB-1", "fetch", FETCH_BYTES, 1),
    Scenario("fetch-1MiB-8", "fetch", FETCH_BYTES, 8),
    Scenario("connect-1", "connect", 0, 1),
    Scenario("connect-8", "connect", 0, 8),
)


@dataclass(frozen=True)
class Result:
    """One scenario on one broker: rate, bytes and CPU are means over the rounds, percentiles are medians."""

    requests_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    broker_cpu_us: float
    mb_per_s: float
    errors: int


def merged(rounds: Sequence[Result]) -> Result:
    return Result(
        requests_per_s=mean(r.requests_per_s for r in rounds),
        p50_us=median(r.p50_us for r in rounds),
        p99_us=median(r.p99_us for r in rounds),
        p999_us=median(r.p999_us for r in rounds),
        broker_cpu_us=mean(r.broker_cpu_us for r in rounds),
        mb_per_s=mean(r.mb_per_s for r in rounds),
        errors=sum(r.errors for r in rounds),
    )


def build_generator() -> None:
    """Compile load.c if a source file has changed since the last compilation. Raises LoadError."""
    changed = max(path.stat().st_mtime for path in NATIVE.iterdir())
    if GENERATOR.exists() and GENERATOR.stat().st_mtime > changed:
        return
    BIN.mkdir(exist_ok=True)
    command = ["cc", "-O2", "-Wall", "-o", str(GENERATOR), str(NATIVE / "load.c"), "-lssl", "-lcrypto"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        needs = "apt-get install gcc libc6-dev libssl-dev"
        raise LoadError(f"load.c needs a C compiler: {needs}") from error
    if done.returncode:
        raise LoadError(f"load.c does not compile:\n{done.stderr}")


def attempts(patience_s: float) -> Iterator[int]:
    """Count attempts, with a short pause after each. Raises BrokerError after `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    for number in itertools.count():
        yield number
        if time.monotonic() > deadline:
            raise BrokerError(f"a request is still refused after {number + 1} attempts in {patience_s:g} s")
        time.sleep(0.05)


def _until_accepted(broker: Broker, request: frames.Request) -> None:
    """Send until the error code is 0: a topic just made may not have a leader yet."""
    for _ in attempts(TOPIC_TIMEOUT_S):
        with frames.connected(broker.address) as connection:
            if not frames.exchange(connection, request)[0]:
                return


def create_topic(
    broker: Broker,
    topic: str,
    partitions: int = 1,
    *,
    first: frames.Request | None = None,
    timeout_s: int = TOPIC_TIMEOUT_S,
) -> None:
    """Create the topic; return when partition 0 has its first record: `first`, or one of 100 bytes."""
    with frames.connected(broker.address, timeout_s=timeout_s) as connection:
        request = frames.create_topic(topic, partitions, timeout_ms=1000 * timeout_s)
        error_code, _ = frames.exchange(connection, request)
    if error_code:
        raise BrokerError(f"{broker.name} answers CreateTopics with error code {error_code}")
    _until_accepted(broker, first or frames.produce(topic, records=1, value_bytes=100))


def delete_topic(broker: Broker, topic: str) -> None:
    """Delete the topic of a load, because the load leaves gigabytes in it."""
    with frames.connected(broker.address) as connection:
        error_code, _ = frames.exchange(connection, frames.delete_topic(topic))
    if error_code:
        raise BrokerError(f"{broker.name} answers DeleteTopics with error code {error_code}")


def prepare(scenario: Scenario, broker: Broker, topic: str) -> frames.Request:
    """Make the topic, fill it if it will be read, and return the request to send."""
    # A busy disk makes a hundred partitions in some seconds.
    create_topic(
        broker, topic, scenario.partitions, timeout_s=max(TOPIC_TIMEOUT_S, scenario.partitions // 10)
    )
    if scenario.kind == "connect":
        return frames.api_versions()
    if scenario.kind == "produce":
        request = frames.produce(topic, records=1, value_bytes=scenario.value_bytes)
        for partition in range(scenario.partitions):
            _until_accepted(broker, request.for_partition(partition))
        return request
    fill = frames.produce(topic, records=1, value_bytes=16_000)
    with frames.connected(broker.address) as connection:
        for _ in range(FETCH_TOPIC_BYTES // 16_000):
            error_code, _ = frames.exchange(connection, fill)
            if error_code:
                raise BrokerError(f"{broker.name} answers a produce with error code {error_code}")
    request = frames.fetch(topic, offset=0, bytes_max=scenario.value_bytes)
    _until_accepted(broker, request)
    return request


def settle_memory(directory: Path, seconds: float) -> None:
    """Before a bulk produce, write earlier data to disk, and touch the memory that the page cache will use.

    A virtual machine gets memory from its host at the first touch of each page, at a tenth of the speed of
    memory that it already has. And after a few GB of writes the kernel slows writers down to the speed of the
    disk. Without this call, figures would depend on what ran earlier, not only on the broker.
    """
    block = bytes(PAGE_CACHE_BLOCK_BYTES)
    os.sync()
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(int(PAGE_CACHE_BYTES_PER_S * (seconds + WARMUP_S)) // len(block)):
            file.write(block)


@dataclass(frozen=True)
class Door:
    """Another listener of the broker, and what a client needs to connect to it.

    `authorities`: a file of CA certificates to verify the listener's certificate with; None: no TLS.
    `login`: user and password of SCRAM-SHA-256.
    """

    port: int
    authorities: Path | None = None
    login: tuple[str, str] | None = None

    def options(self) -> list[str]:
        """Return the generator's options for this listener, except the port."""
        encrypted = ["--tls-ca", str(self.authorities)] if self.authorities else []
        return [*encrypted, *(["--user", self.login[0], "--password", self.login[1]] if self.login else [])]


def _generator_command(
    broker: Broker,
    request: frames.Request,
    connections: int,
    seconds: float,
    partitions: int,
    reconnect: bool,
    rate: float,
    door: Door | None,
) -> list[str]:
    host, port = broker.address
    if door is not None:
        port = door.port
    return [
        *(str(GENERATOR), "--json", "--host", host, "--port", str(port)),
        *("--connections", str(connections), "--seconds", str(seconds), "--warmup", str(WARMUP_S)),
        *("--error-at", str(request.error_at), "--min-response", str(request.response_bytes_min)),
        *(["--reconnect"] if reconnect else []),
        *(["--rate", str(rate)] if rate else []),
        *(door.options() if door else []),
        *(["--partitions", str(partitions), *_number_at(request)] if partitions > 1 else []),
    ]


def _number_at(request: frames.Request) -> list[str]:
    if request.digits_at:
        return ["--digits-at", str(request.digits_at)]
    return ["--partition-at", str(request.partition_at)]


def run_load(
    broker: Broker,
    request: frames.Request,
    connections: int,
    seconds: float,
    *,
    partitions: int = 1,
    reconnect: bool = False,
    rate: float = 0,
    door: Door | None = None,
    at_edges: Callable[[int], None] | None = None,
) -> Result:
    """Run the generator once; measure the CPU time that the broker's tree takes meanwhile. `rate`: requests
    per second, however fast they are answered; 0: a connection sends each request when its previous one is
    answered. `at_edges` is called with the generator's process id when the measuring begins and when it ends.
    """
    tree = broker.tree()
    with tempfile.NamedTemporaryFile() as file:
        file.write(request.frame)
        file.flush()
        command = [
            *_generator_command(broker, request, connections, seconds, partitions, reconnect, rate, door),
            "--request",
            file.name,
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as generator:
            assert generator.stdout is not None
            assert generator.stderr is not None
            first = generator.stdout.readline()
            if at_edges:
                at_edges(generator.pid)
            cpu_before = tree.cpu_seconds()
            second = generator.stdout.readline()
            cpu_after = tree.cpu_seconds()
            if at_edges:
                at_edges(generator.pid)
            complaint = generator.stderr.read().strip()
            generator.wait(LOAD_GRACE_S)
    if first != "measuring\n" or not second or generator.returncode:
        figures = (first + second).strip()
        raise LoadError(f"{' '.join(command)}\n{complaint}\n{figures}\n{broker.output()[-2000:]}")
    figures = json.loads(second)
    return Result(
        requests_per_s=figures["rate"],
        p50_us=figures["p50_us"],
        p99_us=figures["p99_us"],
        p999_us=figures["p999_us"],
        broker_cpu_us=1e6 * (cpu_after - cpu_before) / figures["requests"],
        mb_per_s=max(figures["in_mb_s"], figures["out_mb_s"]),
        errors=figures["errors"],
    )
