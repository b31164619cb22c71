"""Copies of directories that change: what is copied again, what is linked, and when a copy is whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import backup, backup_copy
from mpbroker.cli.host.backup_copy import Copy, Incoming, copy_back, remove_former, whole_copies
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

LOG, SEALED = "t-0/00000000000000000007.log", "t-0/00000000000000000000.log"


def ignore(_: int) -> None:
    """Show no progress."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log directory whose files count as having changed long ago."""
    monkeypatch.setattr(backup_copy, "_UNSURE_NS", -1_000_000_000)
    made = tmp_path / "data"
    write(made / "meta.properties", b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=d\n")
    write(made / SEALED, b"sealed" * 1000)
    write(made / LOG, b"a" * 100_000)
    write(made / "t-0/mpbroker.remote", b"which segments")
    write(made / "remote-cache/t-0/00000000000000000000.log", b"fetched")
    write(made / ".lock", b"")
    write(made / "mpbroker.json", b"{}")
    write(made / "t-1.0123-delete/00000000000000000000.log", b"gone")
    write(made / "t-0/00000000000000000003.log.deleted", b"gone")
    return made


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def begin(data: Path) -> Incoming:
    target = data.parent / "copies"
    target.mkdir(exist_ok=True)
    return Incoming(target, [data], next(reversed(whole_copies(target)), None))


def made(incoming: Incoming) -> Copy:
    incoming.copy(ignore, at_rest=True)
    return incoming.finish(0)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def kept(data: Path) -> dict[str, bytes]:
    left_out = (".lock", "mpbroker.json")
    return {
        name: value
        for name, value in content(data).items()
        if name not in left_out
        and not name.endswith(".deleted")
        and "-delete/" not in name
        and not name.startswith("remote-cache/")
    }


def test_a_copy_has_what_a_broker_needs_and_its_name_only_when_it_is_whole(data: Path) -> None:
    incoming = begin(data)
    count = incoming.copy(ignore)
    assert count == sum(map(len, kept(data).values()))
    assert whole_copies(data.parent / "copies") == []
    copy = made(incoming)
    assert content(copy.path / "0") == kept(data)
    (found,) = whole_copies(data.parent / "copies")
    assert found.manifest == copy.manifest
    assert list(found.problems()) == []
    assert not (data.parent / "copies" / "incoming").exists()


def test_who_restores_tiered_partitions_is_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(begin(data))
    backup.restore(tmp_path / "copies", [tmp_path / "new"], as_json=True)
    assert "1 partition may have records in an object store" in capsys.readouterr().err
    assert (tmp_path / "new/t-0/mpbroker.remote").read_bytes() == b"which segments"
    assert not (tmp_path / "new/remote-cache").exists()


def test_later_passes_copy_what_has_changed(data: Path) -> None:
    incoming = begin(data)
    incoming.copy(ignore)
    assert incoming.copy(ignore) == 0
    with (data / LOG).open("ab") as file:
        file.write(b"b" * 500)
    assert incoming.copy(ignore) == 500
    # Cut, and grown beyond what it was.
    write(data / LOG, b"a" * 90_000 + b"c" * 20_000)
    assert incoming.copy(ignore) == 110_000
    # Another file of the same size, with the times of the one that it replaces.
    before = (data / SEALED).stat()
    write(data / "t-0/new", b"SEALED" * 1000)
    os.utime(data / "t-0/new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (data / "t-0/new").rename(data / SEALED)
    assert incoming.copy(ignore) == 6000
    (data / SEALED).unlink()
    assert content(made(incoming).path / "0") == kept(data)


def test_a_file_that_is_cut_while_it_is_copied_is_left_to_the_next_pass(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes a part of a batch, which is cut off again."""
    real, lengths = os.copy_file_range, [80_000, 90_000]

    def cut(source: int, to: int, count: int, at: int, to_at: int) -> int:
        if at == 0 and lengths and os.fstat(source).st_ino == (data / LOG).stat().st_ino:
            os.truncate(data / LOG, lengths.pop())
        return real(source, to, count, at, to_at)

    monkeypatch.setattr(os, "copy_file_range", cut)
    incoming = begin(data)
    incoming.copy(ignore)
    write(data / LOG, b"b" * 100_000)
    with pytest.raises(OSError, match="shorter"):
        incoming.copy(ignore, at_rest=True)
    assert content(made(incoming).path / "0") == kept(data)


def test_a_segment_that_goes_while_all_are_counted_is_no_error(data: Path) -> None:
    shutil.rmtree(data / "t-0")
    (data / "t-1").mkdir()
    (data / "t-1/00000000000000000005.log").symlink_to("what has gone")
    backup.backup(LocalBroker(str(data)), data.parent / "copies", keep=None, as_json=True)
    assert len(whole_copies(data.parent / "copies")) == 1


def test_what_changed_just_before_is_copied_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's clock could give two changes the same time."""
    monkeypatch.setattr(backup_copy, "_UNSURE_NS", 3600 * 1_000_000_000)
    incoming = begin(data)
    incoming.copy(ignore)
    assert incoming.copy(ignore) == sum(len(one) for name, one in kept(data).items() if ".log" not in name)


def test_the_next_copy_links_what_is_as_before_and_leaves_the_former_one_as_it_is(data: Path) -> None:
    first = made(begin(data))
    before = content(first.path)
    with (data / LOG).open("ab") as file:
        file.write(b"b")
    incoming = begin(data)
    assert incoming.copy(ignore, at_rest=True) == 100_001
    with (data / SEALED).open("ab") as file:
        file.write(b"!")
    assert incoming.copy(ignore, at_rest=True) == 6001
    assert incoming.new_partitions() == {incoming.path / "0" / "t-0"}
    second = incoming.finish(0)
    assert second.path.name > first.path.name
    assert content(first.path) == before
    name = "0/meta.properties"
    assert (first.path / name).stat().st_ino == (second.path / name).stat().st_ino
    third = made(begin(data))
    assert content(third.path / "0") == kept(data)
    remove_former(data.parent / "copies", keep=2)
    assert [one.path for one in whole_copies(data.parent / "copies")] == [second.path, third.path]


def test_a_run_goes_on_where_another_was_killed(data: Path) -> None:
    incoming = begin(data)
    incoming.copy(ignore)
    incoming.close()
    state = next(incoming.path.glob("copied-*"))
    state.write_bytes(state.read_bytes() + b'{"path": "0/t-')
    # A file of which a part was written.
    with (data / LOG).open("ab") as file:
        file.write(b"b" * 10)
    with (incoming.path / "0" / LOG).open("ab") as file:
        file.write(b"b" * 5)
    incoming = begin(data)
    assert incoming.copy(ignore, at_rest=True) == 5
    assert content(incoming.finish(0).path / "0") == kept(data)


def test_after_a_restart_of_the_machine_all_is_copied_again(data: Path) -> None:
    incoming = begin(data)
    everything = incoming.copy(ignore)
    incoming.close()
    next(incoming.path.glob("copied-*")).rename(incoming.path / "copied-of-another-boot.jsonl")
    incoming = begin(data)
    assert not (incoming.path / "0").exists()
    assert incoming.copy(ignore) == everything


def test_a_run_that_was_killed_at_its_end_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is written, and only the name of the copy is missing."""
    rename = Path.rename

    def killed(path: Path, to: Path) -> Path:
        if path.is_dir():
            raise InterruptedError(f"{path} becomes {to}")
        return rename(path, to)

    incoming = begin(data)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(InterruptedError):
            made(incoming)
    assert (incoming.path / "manifest.json").exists()
    incoming = begin(data)
    assert incoming.copy(ignore, at_rest=True) == 0
    copy = incoming.finish(0)
    assert list(copy.problems()) == []
    assert sorted(one.name for one in copy.path.iterdir()) == ["0", "manifest.json"]


def test_what_is_not_ours_stays(data: Path) -> None:
    copies = data.parent / "copies"
    write(copies / "2025-postgres" / "dump", b"mine")
    write(copies / "2024" / "manifest.json", b"not ours")
    write(copies / "2026-01-01T00.00.00Z" / "0" / LOG, b"of a removal that was interrupted")
    foreign = content(copies / "2025-postgres") | content(copies / "2024")
    copy = made(begin(data))
    remove_former(copies, keep=1)
    assert [one.path for one in whole_copies(copies)] == [copy.path]
    assert not (copies / "2026-01-01T00.00.00Z").exists()
    assert content(copies / "2025-postgres") | content(copies / "2024") == foreign
    write(copies / "incoming" / "letter", b"mine")
    with pytest.raises(CliError, match="incoming is not an unfinished backup: move it away"):
        begin(data)
    assert content(copies / "incoming") == {"letter": b"mine"}


def test_a_damaged_manifest_is_named(data: Path) -> None:
    copy = made(begin(data))
    (copy.path / "manifest.json").write_bytes(b"{")
    with pytest.raises(CliError, match=rf"{copy.path}/manifest.json is damaged .*: move {copy.path} away"):
        backup.check(data.parent / "copies", as_json=False)


class Control:
    """The control socket of a broker whose log directory is in `state`."""

    def __init__(self, data: Path, state: str) -> None:
        self._status = {"pid": os.getpid(), "log_dirs": [{"log_dir": str(data), "state": state}]}

    def call(self, name: str) -> dict[str, object]:
        assert name == "status"
        return self._status

    @contextmanager
    def connected(self) -> Iterator[Callable[[str], dict[str, object]]]:
        yield lambda name: {"paused": name == "pause", "held_s": 0}


def test_only_an_offline_directory_cannot_be_copied(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a full or slow one is copied."""
    shutil.rmtree(data / "t-0")
    copies, here = data.parent / "copies", LocalBroker()
    for state in ("online", "refuses produces", "slow"):
        monkeypatch.setattr(LocalBroker, "control", lambda _, state=state: Control(data, state))
        backup.backup(here, copies, keep=9, as_json=False)
    assert len(whole_copies(copies)) == 3
    monkeypatch.setattr(LocalBroker, "control", lambda _: Control(data, "offline"))
    with pytest.raises(CliError, match=f"{data} is offline"):
        backup.backup(here, copies, keep=9, as_json=False)


def test_a_call_without_keep_keeps_as_many_as_the_last_one_that_said_it(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(data / "t-0")
    copies, here = data.parent / "copies", LocalBroker(str(data))

    def counts(keep: int | None) -> tuple[int, int]:
        backup.backup(here, copies, keep=keep, as_json=True)
        return len(whole_copies(copies)), json.loads(capsys.readouterr().out)["removed_copies"]

    # The first call keeps one, so that a daily one does not fill the disk.
    assert [counts(None), counts(None)] == [(1, 0), (1, 1)]
    assert [counts(3), counts(None), counts(None), counts(None)] == [(2, 0), (3, 0), (3, 1), (3, 1)]
    backup.backup(here, copies, keep=1, as_json=False)
    assert f"removed 3 older copies: {copies} keeps 1 (--keep)\n" in capsys.readouterr().out


def change(path: Path, content: bytes) -> None:
    """Write a file of a copy, a minute later than it was copied."""
    then = path.stat()
    path.write_bytes(content)
    os.utime(path, (then.st_atime, then.st_mtime + 60))


def test_what_is_damaged_in_the_former_copy_is_copied_again(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(data / "t-0")
    write(data / "t-0" / "leader-epoch-checkpoint", b"0\n0\n")
    write(data / "t-0" / "partition.metadata", b"version: 0\n")
    copies, here = data.parent / "copies", LocalBroker(str(data))
    backup.backup(here, copies, keep=2, as_json=True)
    (first,) = whole_copies(copies)
    changed, cut = (
        first.path / "0" / "t-0" / name for name in ("leader-epoch-checkpoint", "partition.metadata")
    )
    change(changed, b"9\n9\n")
    os.truncate(cut, 3)
    capsys.readouterr()
    backup.backup(here, copies, keep=None, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["written_bytes"] == 15
    assert f"copied again: 2 files, such as {changed}\n" in said.err
    second = whole_copies(copies)[-1]
    assert content(second.path / "0") == kept(data)
    backup.backup(here, copies, keep=None, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["written_bytes"] == 0
    assert not said.err


def test_damage_that_reading_finds_is_not_linked_again(data: Path) -> None:
    """Bytes that a disk changed by itself have the size and time of before."""
    batches = [build_batch([NewRecord(b"key", b"value")]) for _ in range(3)]
    for offset, one in enumerate(batches):
        one[:8] = offset.to_bytes(8, "big")
    write(data / SEALED, bytes(batches[0] + batches[1]))
    (data / LOG).unlink()
    copies, here = data.parent / "copies", LocalBroker(str(data))
    backup.backup(here, copies, keep=None, as_json=True)
    segment = whole_copies(copies)[-1].path / "0" / SEALED
    then = segment.stat()
    segment.write_bytes(segment.read_bytes().replace(b"value", b"VALUE", 1))
    os.utime(segment, ns=(then.st_atime_ns, then.st_mtime_ns))
    # The partition is read for its new segment.
    write(data / "t-0" / "00000000000000000002.log", bytes(batches[2]))
    with pytest.raises(CliError, match="the copy is damaged, the original is not"):
        backup.backup(here, copies, keep=None, as_json=True)
    backup.backup(here, copies, keep=None, as_json=True)
    (copy,) = whole_copies(copies)
    assert content(copy.path / "0") == kept(data)


def test_a_damaged_copy_is_not_restored(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with another time is read; one that is whole has only been moved without its time."""
    first, second = (build_batch([NewRecord(b"key", b"value")]) for _ in range(2))
    second[:8] = (1).to_bytes(8, "big")
    write(data / SEALED, bytes(first + second))
    (data / LOG).unlink()
    copies, new = data.parent / "copies", data.parent / "new"
    copy = made(begin(data))
    segment = copy.path / "0" / SEALED
    whole = segment.read_bytes()
    change(segment, whole)
    backup.restore(copies, [new], as_json=True)
    assert str(segment) in capsys.readouterr().err
    change(segment, whole.replace(b"value", b"VALUE", 1))
    with pytest.raises(CliError, match=f"{copy.path} is damaged: move it away.*\n.*{segment}"):
        backup.restore(copies, [data.parent / "newer"], as_json=True)
    assert not (data.parent / "newer").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        backup.check(copies, as_json=False)
    said = capsys.readouterr().out
    assert "Remove the damaged files from it and run mpbroker backup again" in said
    assert "delete the topic" not in said
    assert "log repair" not in said


def test_the_passes_of_a_copy_are_counted(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that several passes may write more bytes than the copy has."""
    shutil.rmtree(data / "t-0")
    monkeypatch.setattr(backup, "_LAST_PASS_BYTES", 1)
    monkeypatch.setattr(backup_copy, "_UNSURE_NS", 3600 * 1_000_000_000)
    monkeypatch.setattr(LocalBroker, "control", lambda _: Control(data, "online"))
    backup.backup(LocalBroker(), data.parent / "copies", keep=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["written_bytes"], told["passes"]) == (7 * told["bytes"], 7)


def test_what_is_missing_or_cut_is_found(data: Path) -> None:
    copy = made(begin(data))
    (copy.path / "0" / SEALED).unlink()
    os.truncate(copy.path / "0" / LOG, 10)
    assert [one.removeprefix(f"{copy.path}/0/") for one in copy.problems()] == [
        f"{SEALED} is missing",
        f"{LOG} has 10 bytes, and had 100,000",
    ]
    with pytest.raises(CliError, match="is missing"):
        backup.check(data.parent / "copies", as_json=False)
    with pytest.raises(CliError, match="not whole"):
        backup.restore(data.parent / "copies", [data.parent / "new"], as_json=False)
    assert not (data.parent / "new").exists()


def test_a_restore_gives_all_back_and_its_identity_last(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = made(begin(data))
    written: list[str] = []
    copied = backup_copy._copy_bytes

    def note(source: int, to: int, begin: int, end: int) -> None:
        written.append(Path(f"/proc/self/fd/{to}").readlink().name)
        copied(source, to, begin, end)

    monkeypatch.setattr(backup_copy, "_copy_bytes", note)
    new = data.parent / "new"
    new.mkdir()
    copy_back(copy, 0, new, ignore)
    assert content(new) == kept(data)
    assert written[-1] == "meta.properties"


def test_a_copy_is_not_removed_while_it_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, new = data.parent / "copies", data.parent / "new"
    made(begin(data))

    def meanwhile(copy: Copy, number: int, to: Path, seen: Callable[[int], None]) -> None:
        made(begin(data))
        assert remove_former(copies, keep=1) == 0
        copy_back(copy, number, to, seen)

    monkeypatch.setattr(backup, "copy_back", meanwhile)
    backup.restore(copies, [new], as_json=True)
    assert content(new) == kept(data)
    assert remove_former(copies, keep=1) == 1


def test_calls_that_would_harm_are_refused(data: Path, tmp_path: Path) -> None:
    copies, here = tmp_path / "copies", LocalBroker(str(data))
    for target, text in ((data / "copies", "neither lies in"), (tmp_path, "neither lies in")):
        with pytest.raises(CliError, match=text):
            backup.backup(here, target, keep=1, as_json=False)
    assert not (data / "copies").exists()
    with pytest.raises(CliError, match="copies does not exist: name a directory that mpbroker backup"):
        backup.check(copies, as_json=False)
    copies.mkdir()
    with pytest.raises(CliError, match="copies has no copy: name a directory that mpbroker backup"):
        backup.check(copies, as_json=False)
    made(begin(data))
    with pytest.raises(CliError, match="is not empty"):
        backup.restore(copies, [data], as_json=False)
    with pytest.raises(CliError, match="the copy is of 1 directory"):
        backup.restore(copies, [tmp_path / "a", tmp_path / "b"], as_json=False)
    other = tmp_path / "other"
    write(other / "meta.properties", b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n")
    with pytest.raises(CliError, match="a copy of another log directory"):
        backup.backup(LocalBroker(str(other)), copies, keep=1, as_json=False)
    write(other / "mpbroker.dirs", b"y /a\nz /b\n")
    with pytest.raises(CliError, match="name all 2 directories"):
        backup.backup(LocalBroker(str(other)), copies, keep=1, as_json=False)
    with backup_copy.backup_lock(copies), pytest.raises(CliError, match="another mpbroker backup"):
        backup.backup(here, copies, keep=1, as_json=False)
