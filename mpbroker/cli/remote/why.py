"""`mpbroker remote why`: reads facts about a topic's partitions, prints what keeps their segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.host.local_broker import LocalBroker, bootstrap_of_environment
from mpbroker.cli.remote.kept import Partition, Retention, Segment, Tier, kept
from mpbroker.cli.text.output import counted, print_json
from mpbroker.cli.text.sizes import binary_size
from mpbroker.client.admin import Admin
from mpbroker.client.topics import Topic
from mpbroker.config.listeners import port_of, reachable
from mpbroker.ipc.control_client import ControlClient
from mpbroker.protocol.numbers import LATEST, READ_COMMITTED
from mpbroker.protocol.printable import printable
from mpbroker.storage.names import segment_name
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.segments import segments_of
from shm.clock import wall_ms


def why(here: LocalBroker, command_config: Path | None, name: str, *, as_json: bool) -> None:
    """Print for each partition of a topic which segments stay on this disk, and why. Raises CliError."""
    control = here.control()
    found = control.call("remote")
    if not found["enabled"]:
        raise CliError(
            "the broker has no object store, so all segments stay here: set "
            "remote.log.storage.system.enable=true and mpbroker.remote.url, and start it again"
        )
    with open_admin(ClusterAddress(_address(here, control), command_config)) as client:
        topic = client.topic(name)
        settings = {one.name: one.value or "" for one in client.topic_configs(name)}
        stable = _stable_offsets(client, topic)
    tier = Tier(
        bool(found["fenced"]), found["down_since_ms"], found["status"], found["last_error"], wall_ms()
    )
    retention = Retention.of(settings)
    rows = [
        (number, one)
        for number, partition in sorted(_partitions(found["log_dirs"], topic, stable))
        for one in kept(partition, retention, tier)
    ]
    if as_json:
        print_json([{"partition": number, **one._asdict()} for number, one in rows])
        return
    for number, one in rows:
        segments = f"{counted(one.segments, 'segment')}, {binary_size(one.bytes)}"
        print(printable(f"{name}-{number}, offsets from {one.start:,} to {one.end - 1:,} ({segments}):"))
        print(printable(f"  {one.why}"))
        print(printable(f"  {one.do}"))
    if not rows:
        print(printable(f"{name}: no segment is on this disk"))


def _address(here: LocalBroker, control: ControlClient) -> str:
    """Return the address that names the broker, else that of a listener: PLAINTEXT if there is one."""
    named = here.bootstrap
    if named is None and here.port is None and here.log_dirs is None:
        named = bootstrap_of_environment()
    if named is not None:
        return named
    listeners = [one["listener"] for one in control.call("listeners")["listeners"]]
    found = [one for one in listeners if here.port is None or port_of(one) == here.port]
    return reachable(min(found, key=lambda one: not one.startswith("PLAINTEXT:")).partition("://")[2])


def _stable_offsets(client: Admin, topic: Topic) -> dict[int, int]:
    led = [one.index for one in topic.partitions if one.leader >= 0]
    found = client.list_offsets(topic, dict.fromkeys(led, LATEST), READ_COMMITTED)
    return {number: one.offset for number, one in found.items()}


def _partitions(
    log_dirs: list[Any], topic: Topic, stable: Mapping[int, int]
) -> Iterator[tuple[int, Partition]]:
    for number, offset in stable.items():
        for name in log_dirs:
            path = Path(name) / f"{topic.name}-{number}"
            if path.is_dir():
                segments = [_segment(path, base) for base in segments_of(path)]
                yield number, Partition(segments, offset, read_remote_segments(path))


def _segment(path: Path, base: int) -> Segment:
    try:
        found = (path / segment_name(base)).stat()
    except FileNotFoundError:
        # Deleted meanwhile.
        return Segment(base, 0, 0)
    return Segment(base, found.st_size, found.st_mtime_ns // 1_000_000)
