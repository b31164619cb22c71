"""A file system that is really full: a small tmpfs, in a mount namespace of the broker's own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from ops.bench import frames, scenarios
from ops.bench.brokers import MPBROKER_COMMAND, Mpbroker
from tests.real_clients.conftest import stop_cleanly
from tests.real_clients.tools import eventually

KAFKA_STORAGE_ERROR = 56
VALUE_BYTES = 100_000
SIZE = "24m"
OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# What `exec "$@"` runs sees the mount; when it ends, so does the mount.
ON_TMPFS = f"sh -c 'mount -t tmpfs -o size={SIZE} tmpfs {{log_dir}} && exec \"$@\"' sh"


# The same for a broker that is killed: it starts again on the file system that it left.
AGAIN_ON_TMPFS = (
    f"sh -c 'mount -t tmpfs -o size={SIZE} tmpfs {{log_dir}} && "
    'while "$@"; status=$?; [ $status = 137 ]; do :; done; exit $status\' sh'
)


def settings(flush_policy: str) -> list[str]:
    return [
        flag
        for setting in (
            f"log.flush.policy={flush_policy}",
            "log.segment.bytes=1048576",
            "log.segment.delete.delay.ms=0",
        )
        for flag in ("-o", setting)
    ]


def on_small_disk(directory: Path, launcher: str, flush_policy: str) -> Mpbroker:
    tried = subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine gives no mount namespace: {tried.stderr.strip()}")
    template = f"{' '.join(OWN_NAMESPACE)} {launcher} {MPBROKER_COMMAND}"
    return Mpbroker(directory / "small", template=template, flags=settings(flush_policy))


@pytest.fixture(params=["group", "os"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mpbroker]:
    broker = on_small_disk(tmp_path, ON_TMPFS, request.param)
    broker.start()
    yield broker
    broker.kill()


def produce(broker: Mpbroker, topic: str, most: int) -> int:
    """How many of the records were acknowledged before one was refused."""
    request = frames.produce(topic, records=1, value_bytes=VALUE_BYTES)
    with frames.connected(broker.address) as connection:
        for number in range(most):
            error, _ = frames.exchange(connection, request)
            if error:
                assert error == KAFKA_STORAGE_ERROR
                return number
    return most


def fill(broker: Mpbroker) -> None:
    """To the last block, which a refused produce leaves over."""
    assert broker.process is not None
    supervisor = psutil.Process(broker.process.pid).children()[0]
    seen_by_it = Path("/proc", str(supervisor.pid), "root", *broker.log_dir.parts[1:], "filler")
    with seen_by_it.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    with pytest.raises(OSError, match="No space left on device"):
        seen_by_it.with_name("more").write_bytes(b"x")


def read(broker: Mpbroker, topic: str, last: int) -> list[int]:
    """The offsets of all records up to that one, which is read."""
    consumer = Consumer(
        {"bootstrap.servers": "{}:{}".format(*broker.address), "group.id": "g", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets: list[int] = []
    while not offsets or offsets[-1] < last:
        message = consumer.poll(10)
        assert message is not None, offsets
        assert message.error() is None, message.error()
        offsets.append(message.offset())
    consumer.close()
    return offsets


def test_a_full_disk_refuses_produces_loses_nothing_and_recovers_by_itself(small: Mpbroker) -> None:
    scenarios.create_topic(small, "ballast")
    scenarios.create_topic(small, "kept")
    assert produce(small, "ballast", 80) == 80
    acked = produce(small, "kept", 1000)
    assert 0 < acked < 1000
    # Said after the answer is given.
    eventually(lambda: "is refused until there is room" in small.output(), "the operator is told")
    # One record was there since the topic was made.
    assert read(small, "kept", acked) == list(range(acked + 1))
    assert produce(small, "kept", 1) == 0
    scenarios.delete_topic(small, "ballast")
    eventually(lambda: produce(small, "kept", 1) == 1, "a produce succeeds when there is room again")
    assert read(small, "kept", acked + 1) == list(range(acked + 2))
    stop_cleanly(small)


def test_a_broker_that_was_killed_on_a_full_disk_starts_again(tmp_path: Path) -> None:
    """Who cannot start cannot delete anything either, so nobody could make room."""
    broker = on_small_disk(tmp_path, AGAIN_ON_TMPFS, "group")
    try:
        broker.start()
        scenarios.create_topic(broker, "ballast")
        scenarios.create_topic(broker, "kept")
        assert produce(broker, "ballast", 80) == 80
        acked = produce(broker, "kept", 1000)
        fill(broker)
        assert broker.process is not None
        shell = psutil.Process(broker.process.pid)
        for process in shell.children(recursive=True):
            process.kill()
        eventually(lambda: broker.output().count("serving on ") == 2, "it serves again")
        assert "mpbroker.json: No space left on device" in broker.output()
        assert read(broker, "kept", acked) == list(range(acked + 1))
        scenarios.delete_topic(broker, "ballast")
        eventually(lambda: produce(broker, "kept", 1) == 1, "a produce succeeds when there is room again")
        eventually(lambda: "mpbroker.json was written" in broker.output(), "the pointer follows")
        (supervisor,) = shell.children()
        supervisor.terminate()
        assert broker.process.wait(30) == 0
    finally:
        broker.kill()
