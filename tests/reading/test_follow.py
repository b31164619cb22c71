"""Topics in files are followed while brokers come, publish, die, and come again."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpbroker.ipc.table import PartitionFlag, read_partition_surely
from mpbroker.reading import follow as follow_module
from mpbroker.reading.errors import OptionError, SourceUnavailable
from mpbroker.reading.follow import FileAlarm, Follower, LocalFollower, follow
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import OffsetRange
from tests.reading.conftest import Published
from tests.support.polling import PATIENCE_S, until
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill


@pytest.fixture
def follower(writer: Published) -> Iterator[LocalFollower]:
    """A follower of ten records, which a broker has published."""
    writer.add(1)
    where = {"subscribePattern": "t.*", "log.dir": str(writer.log_dir)}
    found = follow(parse_options(where, streaming=True))
    assert isinstance(found, LocalFollower)
    yield found
    found.close()


@contextmanager
def waits(follower: Follower) -> Iterator[None]:
    """Let it wait meanwhile for what comes, which has to end its wait."""
    waiting = threading.Thread(target=follower.wait, args=(10 * PATIENCE_S,))
    waiting.start()
    yield
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def ends(follower: LocalFollower) -> dict[str, int]:
    return {f"{topic}-{number}": found.end for (topic, number), found in follower.poll().items()}


def test_what_is_published_is_seen(follower: LocalFollower, writer: Published) -> None:
    assert ends(follower) == {"t-0": 10}
    fill(writer, 2)
    assert ends(follower) == {"t-0": 10}, "it is in the file, and nobody has said so"
    writer.broker.publish(writer)
    assert ends(follower) == {"t-0": 30}
    (task,) = follower.catalog.tasks(follower_range(follower), 1, None)
    assert (task.start, task.end) == (0, 30)


def follower_range(follower: LocalFollower) -> OffsetRange:
    return OffsetRange(("t", 0), 0, follower.poll()["t", 0].end)


def test_nothing_is_listed_or_attached_while_nothing_is_made(
    follower: LocalFollower, writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.poll()
    monkeypatch.setattr(LocalFollower, "_opened", pytest.fail)
    for turn in range(3):
        writer.add(1)
        assert ends(follower) == {"t-0": 20 + 10 * turn}


def test_a_move_that_ends_while_directories_are_listed_is_noticed(
    follower: LocalFollower, log_dir: Path, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old directory is listed, and what is watched from then on does not change any more."""
    follower.poll()
    opened, listings = LocalFollower._opened, []

    def moves_meanwhile(follower: LocalFollower) -> LocalCatalog:
        found = opened(follower)
        if not listings:
            (place,) = found.slots([("t", 0)])
            fake_broker.publish_slot(read_partition_surely(*place)._replace(log_dir=1))
        listings.append(found)
        return found

    monkeypatch.setattr(LocalFollower, "_opened", moves_meanwhile)
    (log_dir / "u-0").mkdir()
    for _ in range(3):
        follower.poll()
    assert len(listings) == 2


def test_new_partitions_and_topics(follower: LocalFollower, log_dir: Path, fake_broker: FakeBroker) -> None:
    assert ends(follower) == {"t-0": 10}
    another = PartitionWriter(log_dir, "t2")
    assert ends(follower) == {"t-0": 10}, "it is being made"
    fake_broker.publish(another)
    until(lambda: ends(follower) == {"t-0": 10, "t2-0": 0}, "the new topic is seen")


def test_a_topic_that_comes_behind_the_listing_is_seen(
    follower: LocalFollower, log_dir: Path, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the log directory changes afterwards."""
    opened, made = LocalFollower._opened, []

    def touch() -> None:
        (log_dir / "note").touch()
        (log_dir / "note").unlink()

    def comes_meanwhile(follower: LocalFollower) -> LocalCatalog:
        before = log_dir.stat().st_mtime_ns
        found = opened(follower)
        if not made:
            made.append(PartitionWriter(log_dir, "t2"))
            fake_broker.publish(made[0])
            # The kernel counts times in ticks.
            until(lambda: log_dir.stat().st_mtime_ns != before, "another tick", touch)
        return found

    monkeypatch.setattr(LocalFollower, "_opened", comes_meanwhile)
    touch()
    assert ends(follower) == {"t-0": 10}
    assert ends(follower) == {"t-0": 10, "t2-0": 0}


def test_a_wait_ends_with_what_is_published(follower: LocalFollower, writer: Published) -> None:
    follower.poll()
    begun = time.monotonic()
    follower.wait(0.02)
    assert time.monotonic() - begun >= 0.02
    with waits(follower):
        writer.add(1)
    assert ends(follower) == {"t-0": 20}


@pytest.fixture
def quiet(follower: LocalFollower, monkeypatch: pytest.MonkeyPatch) -> LocalFollower:
    """A follower for which nothing has come for long; alarms can be relied on at once."""
    monkeypatch.setattr(follow_module, "_ALARM_SETS_IN_S", 0.0)
    follower.poll()
    monkeypatch.setattr(follower, "_stirred_at", -60.0)
    return follower


def test_after_a_while_the_files_wake_who_waits(quiet: LocalFollower, writer: Published) -> None:
    with waits(quiet):
        until(lambda: quiet._alarm is not None, "the alarm is set")
        fill(writer, 1)
        until(lambda: quiet._alarm is None, "the write is heard of")
        writer.broker.publish(writer)
    assert ends(quiet) == {"t-0": 20}
    assert quiet._has_alarms


def test_an_alarm_that_hears_nothing_is_not_set_again(
    quiet: LocalFollower, writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the time itself: a wait that is over before its first look would set no alarm anyway."""

    class Clock:
        now_s = 1000.0

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    class Deaf(FileAlarm):
        def wait(self, timeout_s: float) -> bool:
            clock.sleep(timeout_s)
            return False

    clock = Clock()
    monkeypatch.setattr(follow_module, "FileAlarm", Deaf)
    monkeypatch.setattr(follow_module, "time", clock)
    quiet.wait(10.0)
    assert quiet._alarm is not None
    writer.add(1)
    assert ends(quiet) == {"t-0": 20}
    for _ in range(2):
        quiet.wait(10.0)
        assert clock.now_s - quiet._stirred_at >= 10.0
        assert quiet._alarm is None


def test_without_watches_of_the_kernel_it_looks_as_before(
    quiet: LocalFollower, writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_directories: object) -> FileAlarm:
        raise OSError(errno.ENOSPC, "no more watches")

    monkeypatch.setattr(follow_module, "FileAlarm", refused)
    with waits(quiet):
        writer.add(1)


def test_while_no_broker_runs_what_it_published_holds(follower: LocalFollower, writer: Published) -> None:
    follower.poll()
    writer.add(1)
    assert ends(follower) == {"t-0": 20}
    writer.broker.stop()
    checkpoint(writer.log_dir, {("t", 0): 10})
    until(lambda: follower.is_at_rest, "the broker's end is seen")
    assert ends(follower) == {"t-0": 20}, "its checkpoint is behind"
    fill(writer, 1)
    checkpoint(writer.log_dir, {("t", 0): 30})
    assert ends(follower) == {"t-0": 30}, "it was stopped in order"

    successor = FakeBroker(writer.log_dir)
    try:
        with pytest.raises(SourceUnavailable, match="t-0 cannot be read: the running broker"):
            follower.poll()
        successor.publish(writer, flags=0)
        with pytest.raises(SourceUnavailable, match="t-0 cannot be read: it is offline"):
            follower.poll()
        fill(writer, 1)
        successor.publish(writer, flags=PartitionFlag.PARTITION_LIVE)
        assert ends(follower) == {"t-0": 40}
    finally:
        successor.stop()


@pytest.mark.parametrize("places", [{}, {"readMode": "remote"}, {"log.dir": "/nowhere"}])
def test_a_limit_of_bytes_is_refused_where_nobody_knows_them(places: dict[str, str]) -> None:
    """It would be ignored, and look as if it were kept."""
    given = {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1", "maxBytesPerTrigger": "1000"}
    with pytest.raises(OptionError, match="maxBytesPerTrigger needs the broker's files"):
        follow(parse_options(given | places, streaming=True))


def test_a_limit_of_bytes_beside_files_that_are_here(writer: Published) -> None:
    writer.add(1)
    given = {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1", "maxBytesPerTrigger": "1000"}
    found = follow(parse_options(given | {"log.dir": str(writer.log_dir)}, streaming=True))
    assert isinstance(found, LocalFollower)
    found.close()
