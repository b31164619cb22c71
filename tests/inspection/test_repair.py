"""Repairing a damaged partition: a broker serves what is left of it, and nothing else is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.inspection import repair
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.records.batch import LEADER_EPOCH_AT
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.checkpoints import read_offsets
from mpbroker.storage.directory_lock import lock_log_dirs
from mpbroker.storage.names import HIGH_WATERMARKS
from tests.support.flipped_bits import flip
from tests.support.inspected_log import BATCHES, RECORDS, log_command, segments
from tests.support.log_writer import TOPIC_ID

END = BATCHES * RECORDS


def run(directory: Path, *arguments: str) -> Result:
    return log_command("repair", str(directory / "t-0"), *arguments)


def opened(directory: Path, durable: int = END) -> PartitionLog:
    known = Known(clean=False, durable=durable)
    log = load(directory / "t-0", "t", 0, TOPIC_ID, resolve(BrokerConfig(), {}), known, lambda _: None)
    log.close_files()
    return log


def offsets(directory: Path) -> list[int]:
    return [
        batch.header.base_offset
        for path in segments(directory)
        for batch in iterate_batches(path.read_bytes())
    ]


@pytest.mark.parametrize("place", [0, 1])
def test_one_damaged_batch_is_all_that_goes(directory: Path, place: int) -> None:
    before = offsets(directory)
    path = segments(directory)[place]
    lost = next(iterate_batches(path.read_bytes())).header.base_offset
    flip(path, 100)
    whole = path.read_bytes()
    with pytest.raises(PartitionDamaged):
        opened(directory)
    result = run(directory, "--yes")
    assert result.exit_code == 0, result.output
    assert f"lost: offset {lost} to {lost + RECORDS - 1}" in result.output
    assert offsets(directory) == [offset for offset in before if offset != lost]
    assert opened(directory).state.log_end == END
    (kept,) = (directory / "t-0").glob("*.damaged")
    assert kept.read_bytes() == whole


def test_what_a_repair_says_to_programs(directory: Path) -> None:
    sound = json.loads(run(directory, "--yes", "--json").stdout)
    path = str(directory / "t-0")
    assert sound == {"path": path, "repaired": False, "segments": [], "lowered": None, "kept": []}
    first, last = segments(directory)[0], segments(directory)[-1]
    size = first.stat().st_size
    batches = [batch.header for batch in iterate_batches(first.read_bytes())]
    flip(first, batches[0].position + 100)
    os.truncate(last, last.stat().st_size - 10)
    done = json.loads(run(directory, "--yes", "--json").stdout)
    assert (done["path"], done["repaired"]) == (path, True)
    cut, end = done["segments"]
    assert cut == {
        "file": str(first),
        "bytes": size,
        "lost_bytes": batches[0].length,
        "corrected_epochs": 0,
        "lost": [{"first": 0, "last": RECORDS - 1}],
    }
    assert end["lost"] == [{"first": END - RECORDS, "last": None}]
    assert done["lowered"] == {"from": END, "to": END - RECORDS}
    assert sorted(done["kept"]) == sorted(map(str, (directory / "t-0").glob("*.damaged")))


def test_a_lost_end_lowers_what_was_durable(directory: Path) -> None:
    path = segments(directory)[-1]
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(PartitionDamaged):
        opened(directory)
    result = run(directory, "--yes")
    assert f"offsets from {END - RECORDS} to {END - 1} are lost" in result.output
    assert read_offsets(directory / HIGH_WATERMARKS) == {("t", 0): END - RECORDS}
    assert opened(directory, END - RECORDS).state.log_end == END - RECORDS


@pytest.mark.parametrize("step", range(4))
def test_killed_halfway_it_can_be_done_again(
    directory: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = offsets(directory)
    for path in segments(directory)[:2]:
        flip(path, 100)

    class Killed(Exception):
        pass

    calls = 0

    def dying(what: Callable[..., object]) -> Callable[..., object]:
        def instead(*arguments: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls > step:
                raise Killed
            return what(*arguments, **more)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(repair.os, "link", dying(repair.os.link))
        patch.setattr(Path, "rename", dying(Path.rename))
        assert isinstance(run(directory, "--yes").exception, Killed)
    assert run(directory, "--yes").exit_code == 0
    assert len(offsets(directory)) == len(before) - 2
    assert opened(directory).state.log_end == END


def test_what_it_refuses(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "nothing is damaged" in run(directory, "--yes").output
    flip(segments(directory)[0], 100)
    whole = segments(directory)[0].read_bytes()
    assert "add --yes" in str(run(directory).exception)
    with open(lock_log_dirs(BrokerConfig(log_dirs=(str(directory),)))[0]):
        assert "a broker has" in str(run(directory, "--yes").exception)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(directory / "t-0", elsewhere / "t-0")
    refused = log_command("repair", str(directory), "--yes")
    assert f"{directory} is a whole log directory. Name a partition in it" in str(refused.exception)
    assert "not a log directory" in str(run(elsewhere, "--yes").exception)
    assert segments(directory)[0].read_bytes() == whole


def test_a_wrong_leader_epoch_costs_no_record(directory: Path) -> None:
    before = offsets(directory)
    first, second = segments(directory)[:2]
    whole = first.read_bytes(), second.read_bytes()
    batches = [batch.header for batch in iterate_batches(whole[0])]
    flip(first, batches[0].position + 100)
    flip(first, batches[2].position + LEADER_EPOCH_AT)
    flip(second, LEADER_EPOCH_AT + 3)
    result = run(directory, "--yes")
    assert result.exit_code == 0, result.output
    assert result.output.count("1 batches get the leader epoch of their offsets") == 2
    assert offsets(directory) == before[1:]
    assert first.read_bytes() == whole[0][batches[1].position :]
    assert second.read_bytes() == whole[1]
    assert run(directory, "--yes").output.endswith("nothing is damaged\n")
