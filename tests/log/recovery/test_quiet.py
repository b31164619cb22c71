"""What is opened at rest, natively, is as a recovery would have opened it; what is odd is left to that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log.format import names
from mpbroker.log.format.checkpoints import text_of_id, write_epochs
from mpbroker.log.partition.partition_log import PartitionLog, segments_of
from mpbroker.log.recovery import log_loader
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged
from mpbroker.log.recovery.quiet import opened_at_rest
from mpbroker.log.recovery.recovered_partition import Opened
from mpbroker.log.recovery.workers import OpenJob
from tests.log.conftest import T0, TOPIC_ID, Writer

NOW = 4_100_000_000_000
CONFIG = {"segment.bytes": "1048576", "index.interval.bytes": "200"}
Files = dict[str, bytes]


class Synced:
    """All there is."""

    def __init__(self, device: int | None) -> None:
        self.device = device

    def sync(self, _: int) -> bool:
        return True


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_loader, "wall_ms", lambda: NOW)


def unclean(at: int, recovery_point: int | None = None, log_start: int = 0) -> Known:
    point = at if recovery_point is None else recovery_point
    return Known(clean=False, recovery_point=point, durable=at, log_start=log_start)


def files_of(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def at_rest(directory: Path, config: TopicConfig, known: Known, checked: list[int] | None = None) -> Any:
    device = directory.stat().st_dev
    note = (checked if checked is not None else []).append
    return opened_at_rest(str(directory), text_of_id(TOPIC_ID), config, known, device, NOW, note)


def by_recovery(directory: Path, config: TopicConfig, known: Known) -> Opened:
    """As `recovery` opens it; with the last time entry, if it has cut that off."""
    times = max(directory.glob(f"*{names.TIME_INDEX_SUFFIX}"))
    before = times.stat().st_size
    log = log_loader.load(directory, "t", 0, TOPIC_ID, config, known, str, syncs=Synced(None))
    if times.stat().st_size < before and not known.clean:
        log.finish_segment()
    return Opened.of(log)


# ---- partitions at rest ----


def never_written(w: Writer) -> Known:
    w.log.close_files()
    return unclean(0)


def not_closed(w: Writer) -> Known:
    w.append(3)
    w.log.close_files()
    return unclean(3, recovery_point=0)


def closed(w: Writer) -> Known:
    w.append(producer=(7, 0, 0))
    w.log.close_cleanly()
    return unclean(1)


def with_indexes(w: Writer) -> Known:
    for i in range(20):
        w.append(producer=(7, 0, i))
    w.log.close_cleanly()
    return unclean(20)


def out_of_order(w: Writer) -> Known:
    """The largest timestamp is in the middle."""
    for i in range(9):
        w.append(timestamp=T0 + 1000 * (i % 5))
    w.log.close_cleanly()
    return unclean(9)


def rolled(w: Writer) -> Known:
    for i in range(25):
        if i and i % 10 == 0:
            for fd in w.log.roll():
                os.close(fd)
        w.append(producer=(7 + i % 2, 0, i // 2))
    w.log.close_cleanly()
    return unclean(25)


def begun_late(w: Writer) -> Known:
    """Records were deleted up to its end."""
    w.append(6)
    w.log.close_cleanly()
    write_epochs(w.log.directory, [(0, 6)])
    return unclean(6, log_start=6)


CLOSED = [never_written, closed, with_indexes, out_of_order, rolled, begun_late]
SHAPES = [not_closed, *CLOSED]
Made = tuple[Path, TopicConfig, Known]


def after_clean_stop(known: Known) -> Known:
    return Known(True, known.durable, known.durable, known.log_start)


@pytest.fixture(params=[*((shape, False) for shape in SHAPES), *((shape, True) for shape in CLOSED)])
def made(request: pytest.FixtureRequest, writer: Callable[..., Writer], topic_config) -> Made:  # type: ignore[no-untyped-def]
    w = writer(**CONFIG)
    shape, is_clean = request.param
    known = shape(w)
    return w.log.directory, topic_config(**CONFIG), after_clean_stop(known) if is_clean else known


def test_it_is_as_a_recovery_opens_it(made: Made, tmp_path: Path) -> None:
    directory, config, known = made
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    before = files_of(directory)
    checked: list[int] = []
    found = at_rest(directory, config, known, checked)
    assert found is not None
    assert files_of(directory) == before
    assert found == tuple(by_recovery(copy, config, known))
    assert files_of(copy) == before
    assert len(checked) == (not known.clean)


def test_appends_go_on_behind_it(made: Made) -> None:
    directory, config, known = made
    log = PartitionLog(directory, "t", 0, TOPIC_ID, config)
    Opened(*at_rest(directory, config, known)).adopt(log)
    log.wake()
    w = Writer(log)
    for _ in range(9):
        w.append(timestamp=T0 + 10_000)
    log.close_cleanly()
    again = log_loader.load(directory, "t", 0, TOPIC_ID, config, Known(clean=True), str)
    assert again.state.log_end == known.durable + 9
    again.close_files()


def test_workers_open_it_so_once_everything_is_synced(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory, config, known = made
    device = directory.stat().st_dev
    job = OpenJob(str(directory), "t", 0, TOPIC_ID, config, known)
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    elsewhere = OpenJob(str(copy), "t", 0, TOPIC_ID, config, known)
    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.log.recovery.workers.load", None)
        assert job.run(lambda _: None, Synced(None if known.clean else device)) is not None
    loaded: list[Path] = []

    def load(path: Path, *others: object) -> PartitionLog:
        loaded.append(path)
        return log_loader.load(path, *others)  # type: ignore[arg-type]

    monkeypatch.setattr("mpbroker.log.recovery.workers.load", load)
    others = [(elsewhere, Synced(None)), (elsewhere, Synced(device + 1))]
    for one, syncs in [*(() if known.clean else others), (elsewhere.again(), Synced(device))]:
        assert one.run(lambda _: None, syncs) is not None
    assert loaded == [str(copy)] * (1 if known.clean else 3)


# ---- what is left to a log_loader, or comes to the same ----


def changes(directory: Path) -> Iterator[Callable[[], object]]:
    """Most bytes, but for those of segments, and each end; what is not there, and what should not be."""
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        step = 1 if len(data) < 100 else 7
        for at in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[at] ^= 1 << (at % 8)
            yield lambda path=path, flipped=flipped: path.write_bytes(flipped)  # type: ignore[misc]
        for other in (data[:-1], data + b"\0", data + bytes(12), data + data[-12:], b""):
            yield lambda path=path, other=other: path.write_bytes(other)  # type: ignore[misc]
        yield path.unlink
        for suffix in (*names.LEFTOVER_SUFFIXES, names.TXN_INDEX_SUFFIX, ".other"):
            named = path.with_name(path.name + suffix)
            yield lambda named=named: named.write_bytes(b"")  # type: ignore[misc]
    for offset in (0, 1, 5, 20, 21, 1 << 62):
        for suffix in (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TXN_INDEX_SUFFIX, names.SNAPSHOT_SUFFIX):
            more = directory / names.segment_name(offset, suffix)
            if not more.exists():
                yield more.touch
    for epochs in ([], [(0, 0), (1, 7)], [(1, 0)], [(0, 1)], [(0, 10**9)]):
        yield lambda epochs=epochs: write_epochs(directory, epochs)  # type: ignore[misc]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    "shape", [not_closed, closed, with_indexes, rolled], ids=lambda shape: shape.__name__
)
def test_what_is_odd_is_as_a_recovery_finds_it(  # type: ignore[no-untyped-def]
    shape, is_clean: bool, writer: Callable[..., Writer], topic_config, tmp_path: Path
) -> None:
    w = writer(**CONFIG)
    known, config, whole = shape(w), topic_config(**CONFIG), w.log.directory
    known = after_clean_stop(known) if is_clean else known
    count = sum(1 for _ in changes(whole))
    taken = 0
    for number in range(count):
        # Beside each other: there is one only at a time.
        odd = Path(shutil.copytree(whole, tmp_path / "t-1"))
        for at, change in enumerate(changes(odd)):
            if at == number:
                change()
                break
        before = files_of(odd)
        found = at_rest(odd, config, known)
        assert files_of(odd) == before
        if found is not None:
            taken += 1
            assert found == tuple(by_recovery(odd, config, known)), number
            assert files_of(odd) == before, number
        shutil.rmtree(odd)
    assert taken < count


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("log_start", [0, 3, 24, 25, 26])
@pytest.mark.parametrize("recovery_point", [0, 3, 12, 21, 24, 25, 30])
@pytest.mark.parametrize("durable", [0, 12, 24, 25, 26])
def test_whatever_is_known_of_it(  # type: ignore[no-untyped-def]
    durable: int,
    recovery_point: int,
    log_start: int,
    is_clean: bool,
    writer: Callable[..., Writer],
    topic_config,
) -> None:
    w = writer(**CONFIG)
    assert rolled(w) == unclean(25)
    assert segments_of(w.log.directory) == [0, 10, 20]
    known, config = Known(is_clean, recovery_point, durable, log_start), topic_config(**CONFIG)
    before = files_of(w.log.directory)
    found = at_rest(w.log.directory, config, known)
    if found is None:
        return
    assert found == tuple(by_recovery(w.log.directory, config, known))
    assert files_of(w.log.directory) == before


def test_what_is_not_there_is_left_to_a_recovery(topic_config, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    device = tmp_path.stat().st_dev
    config = topic_config()
    assert opened_at_rest(str(tmp_path / "t-0"), b"", config, unclean(0), device, NOW, print) is None


def test_damage_behind_the_recovery_point_is_left_to_a_recovery(writer, topic_config) -> None:  # type: ignore[no-untyped-def]
    """In whichever segment."""
    w = writer(**CONFIG)
    known, config = rolled(w), topic_config(**CONFIG)
    segment = w.log.directory / names.segment_name(10)
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert at_rest(w.log.directory, config, known) is not None
    damaged = unclean(25, recovery_point=12)
    assert at_rest(w.log.directory, config, damaged) is None
    with pytest.raises(PartitionDamaged, match="nothing is cut"):
        by_recovery(w.log.directory, config, damaged)


@pytest.mark.parametrize("durable", [0, 1, 19])
def test_what_lies_behind_what_is_durable_is_left_to_a_recovery(  # type: ignore[no-untyped-def]
    durable: int, writer, topic_config
) -> None:
    """It has to be read from the device, whatever memory has of it."""
    w = writer(**CONFIG)
    with_indexes(w)
    config = topic_config(**CONFIG)
    assert at_rest(w.log.directory, config, unclean(20)) is not None
    assert at_rest(w.log.directory, config, unclean(durable, recovery_point=20)) is None
    assert at_rest(w.log.directory, config, unclean(durable)) is None


def test_a_log_that_ends_below_its_start_is_begun_anew_by_a_recovery(writer, topic_config) -> None:  # type: ignore[no-untyped-def]
    w = writer(**CONFIG)
    begun_late(w)
    known, config = unclean(6, log_start=7), topic_config(**CONFIG)
    assert at_rest(w.log.directory, config, known) is None
    log = log_loader.load(w.log.directory, "t", 0, TOPIC_ID, config, known, str, syncs=Synced(None))
    assert log.state.segment_base == 7
    log.close_files()


def test_a_transaction_that_is_open_is_left_to_a_recovery(writer, topic_config) -> None:  # type: ignore[no-untyped-def]
    """It holds back what lies behind its beginning."""
    w = writer(**CONFIG)
    w.append(producer=(7, 0, 0))
    w.log.state.producers.update(8, 0, 0, 1, 0, T0, transactional=True)
    w.log.close_cleanly()
    config = topic_config(**CONFIG)
    assert at_rest(w.log.directory, config, unclean(1)) is None
    assert by_recovery(w.log.directory, config, unclean(1)).state[16] == 0


def test_no_descriptor_is_left_open(writer, topic_config) -> None:  # type: ignore[no-untyped-def]
    w = writer(**CONFIG)
    known, config = with_indexes(w), topic_config(**CONFIG)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
    for one in (known, unclean(19), unclean(30)):
        at_rest(w.log.directory, config, one)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
