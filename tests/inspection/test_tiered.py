"""`mpbroker log` on a partition whose first segments are in an object store."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import check
from mpbroker.storage.checkpoints import read_offsets, write_offsets
from mpbroker.storage.names import LOG_STARTS, REMOTE_SEGMENTS
from mpbroker.storage.remote_segments import RemoteSegment, read_remote_segments, write_remote_segments
from mpbroker.storage.segments import segments_of
from tests.support.inspected_log import BATCHES, RECORDS
from tests.support.inspected_log import log_command as run

END = BATCHES * RECORDS


@pytest.fixture
def tiered(directory: Path) -> Path:
    """The partition's directory; the store has all sealed segments, and the first one is there alone."""
    partition = directory / "t-0"
    stored = [
        RemoteSegment(base, end, 4000, 7, end.to_bytes(16, "big"))
        for base, end in pairwise(segments_of(partition))
    ]
    write_remote_segments(partition, stored)
    for path in partition.glob(f"{0:020}.*"):
        path.unlink()
    write_offsets(directory / LOG_STARTS, {("t", 0): 5})
    return partition


def findings(partition: Path) -> list[tuple[Severity, str]]:
    (found,) = open_directory(partition.parent).partitions
    check(found)
    return [(one.severity, one.text) for one in found.all_findings]


def test_it_is_whole(tiered: Path) -> None:
    result = run("verify", str(tiered.parent))
    assert result.exit_code == 0, result.output
    assert "All records are whole." in result.output


def test_what_the_store_has_is_dumped(tiered: Path) -> None:
    assert REMOTE_SEGMENTS in run("dump", str(tiered)).output
    result = run("dump", "--json", str(tiered / REMOTE_SEGMENTS))
    dumped = [json.loads(line) for line in result.output.splitlines()]
    bases = [entry["base_offset"] for entry in dumped if "base_offset" in entry]
    assert bases == [one.base for one in read_remote_segments(tiered)]


def test_damage_is_named(tiered: Path) -> None:
    path = tiered / REMOTE_SEGMENTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert findings(tiered) == [(Severity.DERIVED, f"{path} is damaged: its checksum does not match")]
    path.write_bytes(whole)
    remote, local_start = read_remote_segments(tiered), segments_of(tiered)[0]
    write_remote_segments(tiered, [remote[0]._replace(end=20)])
    gap = f"offsets 20 to {local_start - 1:,} are neither in the object store nor here"
    assert findings(tiered) == [(Severity.DAMAGE, gap)]
    beyond = RemoteSegment(remote.end, END + 1, 1, 1, bytes(16))
    write_remote_segments(tiered, [*remote, beyond])
    ends = f"the object store has offsets up to {END:,}, the log ends at {END:,}"
    assert findings(tiered) == [(Severity.DAMAGE, ends)]


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_recovery_leaves_the_log_start_in_the_store(tiered: Path, is_dry: bool) -> None:
    arguments = ["recover", "--json", *(["--dry-run"] if is_dry else []), str(tiered.parent)]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["directories"]
    (partition,) = report["partitions"]
    assert (partition["log_start"], partition["log_end"], partition["problem"]) == (5, END, "")
    if not is_dry:
        assert read_offsets(tiered.parent / LOG_STARTS) == {("t", 0): 5}
    assert len(read_remote_segments(tiered)) == 2
