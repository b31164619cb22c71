"""A broker that recovers can be asked how far it is; many partitions need few descriptors."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import by_log_dirs
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.topology import LOG
from mpbroker.storage.names import LOCK
from ops.bench import frames
from ops.bench.brokers import BrokerError, Mpbroker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, stop_cleanly

TOPIC = "many"
PARTITIONS = 250
# Of the broker: fewer than its partitions have files.
DESCRIPTORS = 600
# struct flock: type, whence, start, length, pid.
FLOCK = struct.Struct("hhqqi4x")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    limited = f"prlimit --nofile={DESCRIPTORS}:{DESCRIPTORS} "
    made = Mpbroker(tmp_path, template=limited + Mpbroker.template)
    try:
        yield made
    finally:
        made.kill()


def produce_to_all(broker: Mpbroker) -> list[int]:
    with frames.connected(broker.address, timeout_s=PATIENCE_S) as connection:
        request = frames.produce(TOPIC, records=1, value_bytes=100)
        return [frames.exchange(connection, request.for_partition(n))[0] for n in range(PARTITIONS)]


def create(broker: Mpbroker) -> None:
    with frames.connected(broker.address, timeout_s=PATIENCE_S) as connection:
        assert frames.exchange(connection, frames.create_topic(TOPIC, PARTITIONS))[0] == 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_more_partitions_than_descriptors(broker: Mpbroker, is_clean: bool) -> None:
    broker.start()
    create(broker)
    eventually(lambda: set(produce_to_all(broker)) == {0}, "every partition takes a batch")
    if is_clean:
        stop_cleanly(broker)
    else:
        broker.kill()
    broker.start()
    # By name they are gone when all is open, and they leave nothing behind.
    assert not [p for p in broker.tree().members() if "recovery" in " ".join(p.cmdline())]
    assert set(produce_to_all(broker)) == {0}
    assert control(broker).call("status")["recovery"] == []


def test_a_start_says_what_it_checked_after_a_stop_that_was_not_clean(broker: Mpbroker) -> None:
    """And nothing of a directory that is new, or was closed cleanly."""
    broker.start()
    create(broker)
    assert "not closed cleanly" not in broker.output()
    broker.kill()
    broker.start()
    stop_cleanly(broker)
    # With the metadata.
    checked = (
        rf"INFO \[log 0\] {broker.log_dir}: it was not closed cleanly; {PARTITIONS + 1} of {PARTITIONS + 1} "
        r"partitions were checked, \d+\.\d MB read, 0 bytes restored from the commit journal, in \d+ ms\n"
    )
    assert re.search(checked, broker.output()), broker.output()
    broker.start()
    assert broker.output().count("not closed cleanly") == 1


def test_a_status_is_given_and_the_port_is_held_while_it_recovers(broker: Mpbroker, tmp_path: Path) -> None:
    """What the log process waits for here are the workers of one before it."""
    broker.start()
    create(broker)
    broker.kill()
    lock = os.open(broker.log_dir / LOCK, os.O_RDWR)
    # Of the descriptor, not of this process, which opens the file once more when it looks for the broker.
    fcntl.fcntl(lock, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOG, 1, 0))
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        eventually(lambda: found(broker) is not None, "the supervisor can be asked")
        client = found(broker)
        assert client is not None
        assert [process["name"] for process in client.call("status")["processes"]] == ["log 0"]
        (tmp_path / "another").mkdir()
        another = Mpbroker(tmp_path / "another", port=broker.port)
        with pytest.raises(BrokerError, match=r"exited with 1 at start(.|\n)*the port is in use"):
            another.start()
    finally:
        os.close(lock)
        starting.join()
    assert set(produce_to_all(broker)) == {0}


def found(broker: Mpbroker) -> ControlClient | None:
    """As `mpbroker ctl --log-dirs` finds it, without its environment."""
    try:
        client = by_log_dirs(str(broker.log_dir))
        client.call("status")
    except (CliError, ControlError):
        return None
    return client
