"""How far a long command is, on a terminal; and what of a directory changes while it is read."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpbroker.cli.text.progress import BAR_CHARACTERS
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import check, segment_paths
from mpbroker.inspection.segment import SEEN_BYTES, Segment, inspect
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from mpbroker.storage.names import segment_name
from tests.support.inspected_log import BATCHES, RECORDS
from tests.support.log_writer import TOPIC_ID, Writer
from tests.support.polling import PATIENCE_S, is_readable

LONG = "a-topic-with-a-name-that-is-longer-than-a-line-of-a-terminal" * 3
SEGMENTS = 3
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[Callable[[str], str]]:
    """The command. What is yielded waits until a line has such a text, and says it, or all there was."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "mpbroker", *arguments]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment) as it:
        os.close(slave)
        lines = [""]

        def wait_for(text: str) -> str:
            deadline = time.monotonic() + PATIENCE_S
            while not any(text in line for line in lines) and time.monotonic() < deadline:
                if not is_readable(master, 0.1):
                    continue
                try:
                    lines[-1] += os.read(master, 1 << 16).decode()
                except OSError:
                    break  # the command is over, and with it the terminal
                lines[-1:] = re.split(r"[\r\n]+", CONTROL.sub("", lines[-1]))
            return next((line for line in lines if text in line), "\n".join(lines))

        try:
            yield wait_for
        finally:
            it.kill()
            os.close(master)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A log directory with two partitions, each of a few segments, each of them with a batch."""
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    name_log_dirs(config, check_log_dirs(config))
    config = msgspec.structs.replace(resolve(BrokerConfig(), {}), segment_bytes=100)
    for topic in (LONG, "z"):
        made = Writer(PartitionLog.create(tmp_path / f"{topic}-0", topic, 0, TOPIC_ID, config))
        for _ in range(SEGMENTS):
            made.append()
        made.log.close_cleanly()
    return tmp_path


def hold_up(directory: Path) -> Path:
    """Whoever reads the partition waits behind its segments until somebody writes what is returned."""
    snapshot = max(directory.glob("*.snapshot"))
    snapshot.unlink()
    os.mkfifo(snapshot)
    return snapshot


@pytest.mark.process
def test_verify_says_how_far_it_is(two: Path) -> None:
    """While it is within the first partition, and then the other one; the bar is there beside any name."""
    sizes = [sum(one.stat().st_size for one in segment_paths(two / f"{topic}-0")) for topic in (LONG, "z")]
    assert sum(sizes) < 1000, "they would be told in thousands"
    gates = [hold_up(two / f"{topic}-0") for topic in (LONG, "z")]
    with on_a_terminal("log", "verify", str(two)) as wait_for:
        line = wait_for(f" {sizes[0]}/{sum(sizes)} bytes ")
        half = BAR_CHARACTERS // 2
        bar = "━" * half + " " * half
        assert re.fullmatch(rf"{bar} {sizes[0]}/{sum(sizes)} bytes \S+ {LONG[:10]}\S*… *", line)
        gates[0].write_bytes(b"")
        line = wait_for(f" {sum(sizes)}/{sum(sizes)} bytes ")
        assert re.fullmatch(rf"━{{{BAR_CHARACTERS}}} {sum(sizes)}/{sum(sizes)} bytes \S+ z-0 *", line)
        gates[1].write_bytes(b"")


@pytest.mark.process
def test_recover_says_how_far_it_is(two: Path) -> None:
    with on_a_terminal("log", "recover", "--dry-run", str(two)) as wait_for:
        assert re.match(r"━+ 2/2 \d+:\d\d:\d\d ", wait_for(" 2/2 "))


@pytest.mark.process
def test_what_is_not_a_terminal_gets_no_bar(two: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", "log", "verify", str(two)], capture_output=True, check=True
    )
    assert done.stderr == b""


def test_a_walk_tells_of_every_byte_but_not_with_each_batch(tmp_path: Path) -> None:
    made = Writer(PartitionLog.create(tmp_path / "t-0", "t", 0, TOPIC_ID, resolve(BrokerConfig(), {})))
    for _ in range(25):
        made.append(size=SEEN_BYTES // 10)
    made.log.close_cleanly()
    (partition,) = open_directory(tmp_path / "t-0").partitions
    told: list[int] = []
    check(partition, told.append)
    assert len(told) == 3
    assert min(told[:-1]) >= SEEN_BYTES
    assert sum(told) == partition.size


def test_segments_that_a_broker_deletes_while_they_are_read(directory: Path) -> None:
    (partition,) = open_directory(directory).partitions
    paths = segment_paths(partition.path)

    def delete(_: int) -> None:
        paths[1].unlink(missing_ok=True)
        for snapshot in partition.path.glob("*.snapshot"):
            snapshot.unlink()

    check(partition, delete)
    assert [segment.path for segment in partition.segments] == [paths[0], *paths[2:]]
    assert partition.end_offset == BATCHES * RECORDS
    assert partition.all_findings == []


def test_a_segment_that_a_broker_begins_while_others_are_read(directory: Path) -> None:
    """Its snapshot is of an offset that is not read any more."""
    (partition,) = open_directory(directory).partitions
    snapshot = max(partition.path.glob("*.snapshot"))
    later = BATCHES * RECORDS + 7

    def roll(_: int) -> None:
        (partition.path / segment_name(later)).touch()
        snapshot.with_name(segment_name(later, snapshot.suffix)).write_bytes(snapshot.read_bytes())

    check(partition, roll)
    assert partition.end_offset == BATCHES * RECORDS
    assert partition.all_findings == []


def test_a_segment_that_is_named_and_is_not_there(directory: Path) -> None:
    (partition,) = open_directory(directory).partitions
    path = segment_paths(partition.path)[1]
    path.unlink()
    path.symlink_to("/nowhere")
    with pytest.raises(FileNotFoundError):
        check(partition)


def test_a_segment_that_is_put_in_place_anew_while_others_are_read(directory: Path) -> None:
    (partition,) = open_directory(directory).partitions
    paths = segment_paths(partition.path)
    left = [paths[1]]

    def missed(path: Path, **how: Any) -> Segment:
        if path in left:
            left.remove(path)
            raise FileNotFoundError
        return inspect(path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpbroker.inspection.partition.inspect", missed)
        check(partition)
    assert [segment.path for segment in partition.segments] == paths


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_partition_that_a_broker_deletes_while_it_is_read(directory: Path, *, is_begun: bool) -> None:
    (partition,) = open_directory(directory).partitions
    if is_begun:
        check(partition, lambda _: shutil.rmtree(partition.path, ignore_errors=True))
    else:
        shutil.rmtree(partition.path)
        check(partition)
    assert [one.severity for one in partition.all_findings] == [Severity.NOTE]
