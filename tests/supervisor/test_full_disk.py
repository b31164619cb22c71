"""A file system that is really full: a small tmpfs, or ext4 in a file, in the broker's own mount namespace.

A tmpfs ends with the broker. For ext4 one must be root; what was on it is there again at the next start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mpbroker.cli.host import why
from mpbroker.cli.records import consume
from mpbroker.remote.ledger.spare import SPARE
from mpbroker.storage.names import CLEAN_SHUTDOWN, REMOTE_SEGMENTS
from ops.bench import frames, scenarios
from ops.bench.brokers import MPBROKER_COMMAND, Mpbroker
from tests.support.client_tools import eventually
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served, stop_cleanly

KAFKA_STORAGE_ERROR = 56
VALUE_BYTES = 100_000
SIZE = "24m"
TRIES_TO_FILL = 20
# Of ext4, as mkfs makes it that small.
BLOCK_BYTES = 1024
UNIQUE = itertools.count(86_400_000)
OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
# What `exec "$@"` runs sees the mount; when it ends, so does the mount.
ON_TMPFS = f"sh -c 'mount -t tmpfs -o size={SIZE} tmpfs {{log_dir}} && exec \"$@\"' sh"


# The same for a broker that is killed: it starts again on the file system that it left.
AGAIN_ON_TMPFS = (
    f"sh -c 'mount -t tmpfs -o size={SIZE} tmpfs {{log_dir}} && "
    'while "$@"; status=$?; [ $status = 137 ]; do :; done; exit $status\' sh'
)


OF_ROOT = ("unshare", "--mount")
ON_EXT4 = "sh -c 'mount -o loop {log_dir}.ext4 {log_dir} && exec \"$@\"' sh"


def settings(flush_policy: str, *more: str) -> list[str]:
    return [
        flag
        for setting in (
            f"log.flush.policy={flush_policy}",
            "log.segment.bytes=1048576",
            "log.segment.delete.delay.ms=0",
            *more,
        )
        for flag in ("-o", setting)
    ]


def on_small_disk(directory: Path, launcher: str, flush_policy: str, *more: str) -> Mpbroker:
    tried = subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine gives no mount namespace: {tried.stderr.strip()}")
    template = f"{' '.join(OWN_NAMESPACE)} {launcher} {MPBROKER_COMMAND}"
    return Mpbroker(directory / "small", template=template, flags=settings(flush_policy, *more))


@pytest.fixture
def on_ext4(tmp_path: Path) -> Iterator[Mpbroker]:
    """Make a broker on ext4 whose retention looks all the time."""
    template = f"{' '.join(OF_ROOT)} {ON_EXT4} {MPBROKER_COMMAND}"
    often = ("log.initial.task.delay.ms=100", "log.retention.check.interval.ms=100", "log.retention.ms=-1")
    broker = Mpbroker(tmp_path / "small", template=template, flags=settings("group", *often))
    broker.log_dir.mkdir(parents=True)
    image = broker.log_dir.with_suffix(".ext4")
    with image.open("wb") as file:
        file.truncate(32 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed: apt-get install e2fsprogs")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    mount = ["mount", "-o", "loop", str(image), str(broker.log_dir)]
    tried = subprocess.run([*OF_ROOT, *mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no file can be mounted here: {tried.stderr.strip()}")
    with served(broker):
        yield broker


@pytest.fixture(params=["group", "os"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mpbroker]:
    with served(on_small_disk(tmp_path, ON_TMPFS, request.param)) as broker:
        yield broker


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


def use_up(broker: Mpbroker) -> int:
    """All the room that produces get; `ballast` can go. -> how many records of `kept` were taken."""
    scenarios.create_topic(broker, "ballast")
    assert produce(broker, "ballast", 80) == 80
    acked = produce(broker, "kept", 1000)
    assert 0 < acked < 1000
    return acked


def seen_by(broker: Mpbroker) -> Path:
    """Its log directory, as it is mounted for it."""
    assert broker.process is not None
    supervisor = psutil.Process(broker.process.pid).children()[0]
    return Path("/proc", str(supervisor.pid), "root", *broker.log_dir.parts[1:])


def fill(broker: Mpbroker) -> None:
    """Fill the device to the last block, which a refused produce leaves over."""
    seen_by_it = seen_by(broker) / f"more{next(UNIQUE)}"
    for number in range(TRIES_TO_FILL):
        with seen_by_it.with_name(f"{seen_by_it.name}-{number}").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while filler.write(bytes(1024)):
                    pass
            # Of what ext4 has set aside for un-written pages it needs less.
            os.fsync(filler.fileno())
        with contextlib.suppress(OSError):
            seen_by_it.write_bytes(b"x")
            continue
        return
    pytest.fail("there is always room for more")


def empty(broker: Mpbroker) -> None:
    """Remove what `fill` has made."""
    for path in seen_by(broker).glob("more*"):
        path.unlink()


def read(broker: Mpbroker, topic: str, last: int) -> list[int]:
    """The offsets of all records up to that one, which is read."""
    consumer = Consumer(
        {"bootstrap.servers": "{}:{}".format(*broker.address), "group.id": "g", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets: list[int] = []
    while not offsets or offsets[-1] < last:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, offsets
        assert message.error() is None, message.error()
        offsets.append(message.offset())
    consumer.close()
    return offsets


def test_a_full_disk_refuses_produces_loses_nothing_and_recovers_by_itself(small: Mpbroker) -> None:
    scenarios.create_topic(small, "kept")
    acked = use_up(small)
    # Said after the answer is given.
    eventually(lambda: "are refused until there is room" in small.output(), "the operator is told")
    # One record was there since the topic was made.
    assert read(small, "kept", acked) == list(range(acked + 1))
    assert produce(small, "kept", 1) == 0
    scenarios.delete_topic(small, "ballast")
    eventually(lambda: produce(small, "kept", 1) == 1, "a produce succeeds when there is room again")
    assert read(small, "kept", acked + 1) == list(range(acked + 2))


def test_the_first_group_on_a_full_disk_waits_for_room_and_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator's topic is made then: nothing of it is damaged, and it opens by itself."""
    monkeypatch.setattr(consume, "PATIENCE_MS", 1_000)
    monkeypatch.setattr(why, "_PATIENCE_MS", 1_000)
    # Without a reserve the metadata log alone has room behind its end.
    at_once = ("group.initial.rebalance.delay.ms=0", "log.reserve.bytes=0")
    with served(on_small_disk(tmp_path, ON_TMPFS, "os", *at_once)) as broker:
        cli = OwnCli("{}:{}".format(*broker.address))
        join = ("consume", "kept", "--from-beginning", "-n", "1", "--group")
        scenarios.create_topic(broker, "kept")
        fill(broker)
        said = cli(*join, "g", code=1).err
        assert "COORDINATOR_NOT_AVAILABLE" in said
        assert "is full. Free some space" in said
        for name in ("g", "__consumer_offsets"):
            found = cli("why", name).out
            assert "coordinator is not available" in found or "cannot be served" in found
            assert "is full, " in found
        assert "Not checked: group kept: COORDINATOR_NOT_AVAILABLE" in cli("why", "kept").out
        rows = cli("topic", "describe", "__consumer_offsets", "--json").json[0]["partitions"]
        assert None in {row["leader"] for row in rows}
        status = cli("ctl", "status", "--json").json
        assert status["offline_partitions"] == sum(row["leader"] is None for row in rows) > 0
        assert [one["state"] for one in status["log_dirs"]] == ["refuses produces"]
        assert "produces are refused until there is room" in cli("ctl", "status").out
        output = broker.output()
        assert "restore its directory" not in output
        assert output.count("cannot be opened") == 2, output
        empty(broker)
        eventually(lambda: "all partitions of __consumer_offsets are open" in broker.output(), "it is open")
        assert cli("ctl", "status", "--json").json["offline_partitions"] == 0
        cli(*join, "g")
        # Now the partition is there, and has no room for the group's first record.
        fill(broker)
        said = cli(*join, "h", code=1).err
        assert "NOT_COORDINATOR" in said
        assert "is full. Free some space" in said
        assert 1 <= broker.output().count("group h: its assignment was not written") <= 3
        empty(broker)
        cli(*join, "h")


def test_on_a_full_disk_the_tier_uploads_and_so_makes_room(tmp_path: Path) -> None:
    """Until the disk is full to the last block nothing was to be uploaded."""
    store = tmp_path / "store"
    store.mkdir()
    tiered = (
        *("remote.log.storage.system.enable=true", f"mpbroker.remote.url=file://{store}"),
        *("remote.log.manager.task.interval.ms=100", "log.retention.check.interval.ms=100"),
        *("log.initial.task.delay.ms=100", "log.retention.ms=-1"),
        # Whoever gives a reserve back for a moment would let the tier in, too.
        "log.reserve.bytes=0",
    )
    with served(on_small_disk(tmp_path, ON_TMPFS, "group", *tiered)) as broker:
        config = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
        create_topic(broker.bootstrap, "kept", 1, config)
        spare = seen_by(broker) / "kept-0" / f"{REMOTE_SEGMENTS}{SPARE}"
        eventually(spare.exists, "the tier has seen the partition")
        acked = use_up(broker)
        fill(broker)
        assert produce(broker, "kept", 1) == 0
        alter(broker, "kept", "remote.log.copy.disable", "false")
        alter(broker, "kept", "local.retention.bytes", "1")
        eventually(lambda: produce(broker, "kept", 1) == 1, "a produce succeeds when the tier has made room")
        # What is fetched from the store needs room, too.
        scenarios.delete_topic(broker, "ballast")
        assert read(broker, "kept", acked) == list(range(acked + 1))


def test_a_broker_that_was_killed_on_a_full_disk_starts_again(tmp_path: Path) -> None:
    """Who cannot start cannot delete anything either, so nobody could make room. Nothing is kept here."""
    with served(on_small_disk(tmp_path, AGAIN_ON_TMPFS, "group", "log.reserve.bytes=0")) as broker:
        scenarios.create_topic(broker, "kept")
        acked = use_up(broker)
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
        assert broker.process.wait(PATIENCE_S) == 0


def test_ext4_without_a_free_block(on_ext4: Mpbroker) -> None:
    """Reads and retention go on, a start works after a kill and after a stop, retention makes room."""
    create_topic(on_ext4.bootstrap, "kept", 1, {"retention.bytes": "-1"})
    acked = use_up(on_ext4)
    fill(on_ext4)
    assert produce(on_ext4, "kept", 1) == 0
    assert read(on_ext4, "kept", acked - 1) == list(range(acked))
    on_ext4.kill()
    on_ext4.start()
    assert read(on_ext4, "kept", acked - 1) == list(range(acked))
    assert produce(on_ext4, "kept", 1) == 0
    stop_cleanly(on_ext4)
    on_ext4.start()
    assert read(on_ext4, "kept", acked - 1) == list(range(acked))
    stop_cleanly(on_ext4)
    # What is to go stands in the broker's settings: of a topic's the metadata log would have to be written.
    on_ext4.flags = (*on_ext4.flags, "-o", f"log.retention.bytes={1 << 20}")
    on_ext4.start()
    eventually(lambda: produce(on_ext4, "kept", 1) == 1, "a produce succeeds when retention has made room")
    assert read(on_ext4, "kept", acked) == list(range(acked + 1))
    assert first_offset(on_ext4, "ballast") > 0
    stop_cleanly(on_ext4)
    on_ext4.start()
    assert read(on_ext4, "kept", acked) == list(range(acked + 1))
    assert first_offset(on_ext4, "ballast") > 0


def test_on_a_full_disk_topics_are_deleted_and_a_stop_is_clean(on_ext4: Mpbroker) -> None:
    """Both have to write, and there is room left that produces do not get."""
    create_topic(on_ext4.bootstrap, "kept", 1, {"retention.bytes": "-1"})
    acked = use_up(on_ext4)
    fill(on_ext4)
    stop_cleanly(on_ext4)
    assert CLEAN_SHUTDOWN in names_on(on_ext4.log_dir.with_suffix(".ext4"))
    on_ext4.start()
    fill(on_ext4)
    assert produce(on_ext4, "kept", 1) == 0
    metadata = Path("__cluster_metadata-0", "00000000000000000000.log")
    begun = size_on(on_ext4, metadata)
    while size_on(on_ext4, metadata) // BLOCK_BYTES < begun // BLOCK_BYTES + 2:
        alter(on_ext4, "kept", "max.message.bytes", str(next(UNIQUE)))
    assert produce(on_ext4, "kept", 1) == 0
    scenarios.delete_topic(on_ext4, "ballast")
    eventually(lambda: produce(on_ext4, "kept", 1) == 1, "a produce succeeds when there is room again")
    assert read(on_ext4, "kept", acked) == list(range(acked + 1))


def alter(broker: Mpbroker, topic: str, key: str, value: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(PATIENCE_S)


def size_on(broker: Mpbroker, path: Path) -> int:
    return (seen_by(broker) / path).stat().st_size


def names_on(image: Path) -> list[str]:
    """Return the names in the device's topmost directory, as the device has them."""
    listing = subprocess.run(
        ["debugfs", "-R", "ls -p /", str(image)], capture_output=True, text=True, check=True
    )
    return [line.split("/")[5] for line in listing.stdout.splitlines() if line.startswith("/")]


def first_offset(broker: Mpbroker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    first, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
    consumer.close()
    return first
