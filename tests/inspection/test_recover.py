"""`log recover`: what the broker's next start would do, done or only said."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from mpbroker.cli.errors import CliError
from mpbroker.config.broker import BrokerConfig
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage import names
from mpbroker.storage.checkpoints import read_offsets, write_offsets
from mpbroker.storage.directory_lock import lock_log_dirs
from tests.support.flipped_bits import flip
from tests.support.inspected_log import BATCHES, RECORDS, log_command, segments
from tests.support.log_rig import Rig
from tests.support.log_writer import make_batch
from tests.support.stepped_log import Broker

END = BATCHES * RECORDS
JOURNAL = "mpbroker.journal"


def run(*arguments: str) -> Result:
    return log_command("recover", *arguments)


def report(*arguments: str) -> dict[str, Any]:
    result = run("--json", *arguments)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def offsets(directory: Path, partition: str = "t-0") -> list[int]:
    return [
        record.offset
        for path in sorted((directory / partition).glob("*.log"))
        for batch in iterate_batches(path.read_bytes())
        for record in batch.records()
    ]


def journaled(rig: Rig) -> Broker:
    """A log process whose journal is made and in use."""
    broker = Broker(rig)
    while broker.process.manager.journals.awaited:
        broker.process.work(1)
        broker.process._do_housekeeping()
    return broker


def tear(directory: Path) -> Path:
    """A tail that was never durable, behind what was; the indexes of the last segment are gone."""
    path = segments(directory)[-1]
    with path.open("ab") as file:
        file.write(b"half a batch")
    path.with_suffix(".index").unlink()
    return path


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    (one,) = document["directories"]
    assert isinstance(one, dict)
    return one


def test_a_torn_tail_is_cut_and_the_next_start_is_a_quick_one(directory: Path) -> None:
    path = tear(directory)
    size = path.stat().st_size
    result = run(str(directory))
    assert result.exit_code == 0, result.output
    assert f"cut: t-0/{path.name}, {size:,} to {size - 12:,} bytes" in result.output
    assert " of indexes and snapshots in 1 partition; --json names them\n" in result.output
    assert ".index" not in result.output
    assert f"cut from {size} to {size - 12} bytes" in result.output
    assert f"  t-0: log start offset 0, log end offset {END:,}\n" in result.output
    assert result.output.endswith(f"this reads all of them: mpbroker log verify {directory}\n")
    assert offsets(directory) == list(range(END))
    assert (directory / names.CLEAN_SHUTDOWN).exists()
    for name in (names.HIGH_WATERMARKS, names.RECOVERY_POINTS):
        assert read_offsets(directory / name) == {("t", 0): END}
    again = without_times(report(str(directory)))
    assert again["was_stopped_in_order"]
    assert again["partitions"][0]["log_end"] == END
    assert [change for change in again["partitions"][0]["changes"] if change["file"].endswith(".log")] == []


def test_partitions_without_records_are_one_line(directory: Path) -> None:
    for number in (1, 2):
        (directory / f"empty-{number}").mkdir()
    assert run(str(directory)).exit_code == 0  # makes their files
    result = run(str(directory))
    assert "  without records: 2 of empty\n" in result.output
    assert "empty-1" not in result.output


def test_what_is_derived_is_counted_and_only_json_names_it(directory: Path) -> None:
    """After an unclean stop each partition has some of it, also those without records."""
    (directory / "empty-1").mkdir()
    assert run(str(directory)).exit_code == 0  # makes its files
    (directory / names.CLEAN_SHUTDOWN).unlink()
    for snapshot in directory.glob("*/*.snapshot"):
        snapshot.unlink()
    (partition, empty) = without_times(report("--dry-run", str(directory)))["partitions"][::-1]
    files = [change["file"] for one in (partition, empty) for change in one["changes"]]
    assert any(name.startswith("empty-1/") for name in files), files
    result = run("--dry-run", str(directory))
    assert "  without records: 1 of empty\n" in result.output
    told = f"  rebuilt from the records: {len(files)} files of indexes and snapshots in 2 partitions;"
    assert told in result.output
    assert not any(name in result.output for name in files)


def test_a_dry_run_says_the_same_and_does_nothing(directory: Path) -> None:
    tear(directory)
    before = contents(directory)
    said = report("--dry-run", str(directory))
    assert {**contents(directory), ".lock": b""} == {**before, ".lock": b""}
    assert not (directory / names.DRY_RUN).exists()
    assert said["dry_run"]
    done = report(str(directory))
    assert without_times(said) == without_times(done)
    assert any(change["what"] == "cut" for change in without_times(done)["partitions"][0]["changes"])


def test_a_dry_run_in_words(directory: Path) -> None:
    tear(directory)
    result = run("--dry-run", str(directory))
    assert "Nothing was changed" in result.output
    assert names.DRY_RUN not in result.output


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_what_is_damaged_stays_and_is_told(directory: Path, dry: tuple[str, ...]) -> None:
    path = segments(directory)[-1]
    flip(path, 100)
    data = path.read_bytes()
    result = run(*dry, str(directory))
    assert result.exit_code == 1
    assert f"t-0 stays as it is: {path} is damaged at byte 0" in result.output
    assert path.read_bytes() == data
    assert not (directory / names.CLEAN_SHUTDOWN).exists()
    assert read_offsets(directory / names.HIGH_WATERMARKS) == {("t", 0): END}


def test_a_directory_in_use_is_refused(directory: Path) -> None:
    fds = lock_log_dirs(BrokerConfig(log_dirs=(str(directory),)))
    assert "Stop it first" in str(run(str(directory)).exception)
    assert fds
    for path in (directory / "t-0", directory.parent):
        assert isinstance(run(str(path)).exception, CliError)


def test_where_a_log_starts_is_kept(directory: Path) -> None:
    write_offsets(directory / names.LOG_STARTS, {("t", 0): 7})
    assert without_times(report(str(directory)))["partitions"][0]["log_start"] == 7
    assert read_offsets(directory / names.LOG_STARTS) == {("t", 0): 7}


@pytest.mark.parametrize("dry", [False, True])
def test_the_journal_goes_into_the_segments(rig: Callable[..., Rig], tmp_path: Path, *, dry: bool) -> None:
    """As after a power cut: a segment lacks what was acknowledged, the journal has it."""
    broker = journaled(rig())
    for _ in range(5):
        broker.produce(bytes(make_batch(RECORDS)))
    image = tmp_path / "image"
    shutil.copytree(broker.rig.directory, image)
    broker.close()
    (segment,) = segments(image)
    whole = segment.read_bytes()
    os.truncate(segment, 300)
    said = report(*["--dry-run"] * dry, str(image))
    one = next(p for p in said["directories"][0]["partitions"] if p["topic"] == "t")
    assert (one["problem"], one["log_end"]) == ("", 5 * RECORDS)
    assert any("written back" in note for note in said["directories"][0]["notes"])
    assert segment.read_bytes() == (whole[:300] if dry else whole)
    assert (image / JOURNAL).exists()
    if not dry:
        assert offsets(image) == list(range(5 * RECORDS))


def test_a_damaged_journal_is_an_error_and_touches_nothing(rig: Callable[..., Rig], tmp_path: Path) -> None:
    broker = journaled(rig())
    broker.produce(bytes(make_batch(RECORDS)))
    image = tmp_path / "image"
    shutil.copytree(broker.rig.directory, image)
    broker.close()
    with (image / JOURNAL).open("r+b") as file:
        file.write(bytes(8192))
    before = contents(image / "t-0")
    for dry in ((), ("--dry-run",)):
        error = run(*dry, str(image)).exception
        assert isinstance(error, CliError)
        assert str(image / JOURNAL) in str(error)
        assert contents(image / "t-0") == before
        assert not (image / names.DRY_RUN).exists()


def test_a_directory_of_kafkas_gets_nothing_of_ours(directory: Path) -> None:
    """As Kafka leaves it when it is killed: indexes of their full size, no durable mark."""
    (directory / names.DURABLE_MARK).unlink()
    (directory / names.HIGH_WATERMARKS).unlink()
    last = tear(directory)
    for path in (directory / "t-0").glob("*index"):
        with path.open("ab") as file:
            file.write(bytes(12 * 1000 - path.stat().st_size))
    one = without_times(report(str(directory)))["partitions"][0]
    assert (one["problem"], one["log_end"]) == ("", END)
    assert offsets(directory) == list(range(END))
    assert last.with_suffix(".index").exists()
    assert not [path for path in directory.rglob("*") if path.name.startswith("mpbroker")]
    assert read_offsets(directory / names.RECOVERY_POINTS) == {("t", 0): END}


@pytest.mark.parametrize(("acks", "seen"), [("local", END), ("ledger", END - 1)])
def test_who_reads_the_files_sees_no_more_than_the_object_store_has(
    directory: Path, acks: str, seen: int
) -> None:
    (directory / names.REMOTE_OWNER).write_text(json.dumps({"nonce": "n", "acks": acks}))
    marks = read_offsets(directory / names.HIGH_WATERMARKS)
    write_offsets(directory / names.HIGH_WATERMARKS, {**marks, ("t", 0): END - 1})
    tear(directory)
    run(str(directory))
    assert read_offsets(directory / names.HIGH_WATERMARKS)["t", 0] == seen
    assert read_offsets(directory / names.RECOVERY_POINTS)["t", 0] == END
