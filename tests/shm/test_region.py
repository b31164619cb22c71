"""Regions: what is refused and how that is said, reserved space, ownership."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shm import region as region_module
from shm.region import (
    PAGE_BYTES,
    Block,
    LayoutMismatch,
    Region,
    RegionUnavailable,
    file_system_of,
    process_start_ticks,
    sparse,
)
from tests.support.forms import rounds

Fork = Callable[[Callable[[], None]], Any]
MAGIC = b"TESTREGN"
BLOCKS = [Block("first", 100), Block("second", 5000, 4096), Block("third", 8)]


def test_attached_sees_what_the_owner_writes_and_cannot_write(tmpfs: Path) -> None:
    owner = Region.create_public(tmpfs / "r", MAGIC, 3, BLOCKS)
    reader = Region.attach(tmpfs / "r", MAGIC, 3)
    owner.block("second")[:5] = b"hello"
    assert bytes(reader.block("second")[:5]) == b"hello"
    assert reader.block("first").readonly
    with pytest.raises(TypeError, match="read-only"):
        reader.block("first")[0] = 1
    writer = Region.attach(tmpfs / "r", MAGIC, 3, writable=True)
    writer.block("third")[:] = b"12345678"
    assert bytes(owner.block("third")) == b"12345678"
    assert reader.names() == ["first", "second", "third"]
    assert (reader.owner_pid, reader.layout_version) == (os.getpid(), 3)
    with pytest.raises(KeyError):
        reader.block("fourth")


def test_the_file_is_for_owner_and_group_whatever_the_umask(tmpfs: Path) -> None:
    before = os.umask(0o777)
    try:
        Region.create_public(tmpfs / "r", MAGIC, 1, BLOCKS)
    finally:
        os.umask(before)
    status = (tmpfs / "r").stat()
    assert status.st_mode & 0o7777 == 0o640
    assert status.st_blocks * 512 >= status.st_size, "the space must be reserved, not promised"
    assert [entry.name for entry in tmpfs.iterdir()] == ["r"]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=rounds(40))
@given(
    st.lists(
        st.builds(Block, NAMES, st.integers(1, 10_000), st.sampled_from([64, 128, 1024, 4096])),
        min_size=1,
        max_size=100,
        unique_by=lambda block: block.name,
    )
)
def test_blocks_are_aligned_apart_and_behind_the_directory(blocks: list[Block]) -> None:
    region = Region.create_private(MAGIC, 1, blocks)
    for number, block in enumerate(blocks):
        memory = region.block(block.name)
        assert len(memory) == block.size
        region.block(block.name)[:] = bytes([number]) * block.size
    again = Region(region._buffer, MAGIC)
    for number, block in enumerate(blocks):
        assert bytes(again.block(block.name)) == bytes([number]) * block.size
        assert again._directory[block.name][0] % block.align == 0


def test_another_layout_version_is_refused_in_so_many_words(tmpfs: Path, fork: Fork) -> None:
    Region.create_public(tmpfs / "r", MAGIC, 2, BLOCKS)

    def newer_program() -> None:
        with pytest.raises(LayoutMismatch) as refusal:
            Region.attach(tmpfs / "r", MAGIC, 3)
        assert str(refusal.value) == (
            f"{tmpfs / 'r'} has layout version 2, this program reads version 3: "
            "use the version of the program that made it"
        )

    def same_program() -> None:
        assert Region.attach(tmpfs / "r", MAGIC, 2).names() == ["first", "second", "third"]

    assert [child.wait() for child in (fork(newer_program), fork(same_program))] == [0, 0]


def test_wrong_magic_and_files_that_are_no_region(tmpfs: Path) -> None:
    path = tmpfs / "r"
    Region.create_public(path, MAGIC, 1, BLOCKS)
    with pytest.raises(LayoutMismatch, match="is not a OTHERMAG region"):
        Region.attach(path, b"OTHERMAG", 1)
    whole = path.read_bytes()
    for length in (0, 10, PAGE_BYTES - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(LayoutMismatch, match="is not a region"):
            Region.attach(path, MAGIC, 1)
    for length in (PAGE_BYTES, len(whole) - 1, len(whole) + 1):
        path.write_bytes(whole[:length].ljust(length, b"\0"))
        with pytest.raises(LayoutMismatch, match=f"has {length} bytes, but {len(whole)} in its header"):
            Region.attach(path, MAGIC, 1)
    with pytest.raises(LayoutMismatch, match="is not a region"):
        Region.attach(tmpfs, MAGIC, 1)
    os.mkfifo(tmpfs / "fifo")
    with pytest.raises(LayoutMismatch, match="is not a region"):
        Region.attach(tmpfs / "fifo", MAGIC, 1)
    with pytest.raises(RegionUnavailable, match=r"cannot open .*nothing: No such file"):
        Region.attach(tmpfs / "nothing", MAGIC, 1)


@pytest.mark.parametrize(
    ("at", "word"),
    [
        (32, 2**63),
        (32, 127),
        (64 + 48, 0),
        (64 + 48, 2**64 - 64),
        (64 + 48, PAGE_BYTES + 8),
        (64 + 56, 2**63),
        (64 + 56, 2**64 - 1),
    ],
)
def test_a_damaged_directory_is_refused(tmpfs: Path, at: int, word: int) -> None:
    path = tmpfs / "r"
    Region.create_public(path, MAGIC, 1, BLOCKS)
    damaged = bytearray(path.read_bytes())
    struct.pack_into("<Q", damaged, at, word)
    path.write_bytes(damaged)
    with pytest.raises(LayoutMismatch, match="is damaged"):
        Region.attach(path, MAGIC, 1)


@pytest.mark.process
@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount; the size limit below is tried by everybody"
)
def test_a_full_tmpfs_is_an_error_and_not_a_sigbus(tmp_path: Path) -> None:
    mount = tmp_path / "a small one"
    mount.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount],
            check=True,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as refused:
        pytest.skip(f"root, but not allowed to mount: {refused.stderr.strip()}")
    try:
        assert file_system_of(mount) == "tmpfs", "a mount point with spaces"
        with pytest.raises(RegionUnavailable, match=r"cannot reserve .* bytes for .*No space left on device"):
            Region.create_public(mount / "r", MAGIC, 1, [Block("much", 1 << 20)])
        assert [entry.name for entry in mount.iterdir()] == []
        Region.create_public(mount / "r", MAGIC, 1, [Block("little", 4096)])
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_refused_size_is_an_error_and_leaves_nothing(tmpfs: Path, fork: Fork) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(RegionUnavailable, match=r"cannot reserve .*File too large"):
            Region.create_public(tmpfs / "r", MAGIC, 1, [Block("much", 1 << 20)])

    assert fork(limited).wait() == 0
    assert [entry.name for entry in tmpfs.iterdir()] == []


def test_address_space_that_is_refused_is_named(fork: Fork) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        with pytest.raises(RegionUnavailable, match="ulimit -v"):
            sparse(1 << 40)

    assert fork(limited).wait() == 0


def test_what_is_no_tmpfs_is_refused() -> None:
    with pytest.raises(
        RegionUnavailable,
        match=r"/proc is on proc, not on a tmpfs: .*Name a directory below /run or /dev/shm",
    ):
        Region.create_public(Path("/proc/r"), MAGIC, 1, BLOCKS)


def test_a_missing_directory_is_named(tmpfs: Path) -> None:
    with pytest.raises(RegionUnavailable, match=r"cannot create .*missing/r.*No such file"):
        Region.create_public(tmpfs / "missing" / "r", MAGIC, 1, BLOCKS)


def test_mounts_are_read_as_the_kernel_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    info = r"""1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:5 / /mnt/a\040b rw shared:1 - tmpfs tmpfs rw
3 1 0:6 / /mnt rw master:2 propagate_from:1 - xfs /dev/b rw
4 3 0:7 / /mnt/twice rw - xfs /dev/b rw
5 4 0:8 / /mnt/twice rw - ramfs none rw
"""
    monkeypatch.setattr(region_module.Path, "read_text", lambda _: info)
    for path, kind in (
        ("/", "ext4"),
        ("/mnt/a b/c", "tmpfs"),
        ("/mnt/a", "xfs"),
        ("/mnt/a bc", "xfs"),
        ("/mnt/twice/x", "ramfs"),
        ("/mntx", "ext4"),
    ):
        assert file_system_of(Path(path)) == kind, path


def test_leftovers_of_an_earlier_process_with_our_pid_do_not_matter(tmpfs: Path) -> None:
    (tmpfs / f"r.{os.getpid()}.new").write_bytes(b"killed while making this")
    Region.create_public(tmpfs / "r", MAGIC, 1, BLOCKS)
    assert [entry.name for entry in tmpfs.iterdir()] == ["r"]


def test_a_region_appears_whole(tmpfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is renamed nobody can attach; the rename comes after the header."""
    seen = []

    def rename(making: Path, target: Path) -> None:
        assert not target.exists()
        seen.append(Region.attach(making, MAGIC, 1).names())
        making.replace(target)

    monkeypatch.setattr(region_module.Path, "rename", rename)
    Region.create_public(tmpfs / "r", MAGIC, 1, BLOCKS)
    assert seen == [["first", "second", "third"]]


@pytest.mark.parametrize(
    ("magic", "blocks", "words"),
    [
        (b"SHORT", BLOCKS, "a magic has 8 bytes"),
        (MAGIC, [], "at least one block"),
        (MAGIC, [Block("a", 1), Block("a", 2)], "its own name"),
        (MAGIC, [Block("ä" * 25, 1)], "1 to 48 bytes"),
        (MAGIC, [Block("", 1)], "1 to 48 bytes"),
        (MAGIC, [Block("a", 0)], "size must be positive"),
        (MAGIC, [Block("a", 1, 32)], "power of two"),
        (MAGIC, [Block("a", 1, 96)], "power of two"),
        (MAGIC, [Block("a", 1, 8192)], "aligned"),
    ],
)
def test_layouts_that_cannot_be(tmpfs: Path, magic: bytes, blocks: list[Block], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Region.create_public(tmpfs / "r", magic, 1, blocks)
    with pytest.raises(ValueError, match=words):
        Region.create_private(magic, 1, blocks)
    assert [entry.name for entry in tmpfs.iterdir()] == []


def test_owner_lives_while_it_lives(tmpfs: Path, fork: Fork) -> None:
    assert Region.create_public(tmpfs / "ours", MAGIC, 1, BLOCKS).owner_is_alive()
    theirs = tmpfs / "theirs"
    child = fork(lambda: Region.create_public(theirs, MAGIC, 1, BLOCKS) and None)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    region = Region.attach(theirs, MAGIC, 1)
    assert region.owner_pid == child.pid
    assert Path(f"/proc/{child.pid}").exists()
    assert not region.owner_is_alive(), "a zombie does not run"
    assert child.wait() == 0
    assert not region.owner_is_alive()


def test_a_reused_pid_is_not_the_owner(tmpfs: Path) -> None:
    """The header names our pid with another start: as if we had got the pid of an owner that is dead."""
    path = tmpfs / "r"
    Region.create_public(path, MAGIC, 1, BLOCKS)
    with path.open("r+b") as file:
        file.seek(24)
        file.write(struct.pack("<Q", process_start_ticks(os.getpid()) - 1))
    region = Region.attach(path, MAGIC, 1)
    assert region.owner_pid == os.getpid()
    assert not region.owner_is_alive()


def test_sparse_memory_costs_what_is_touched(fork: Fork) -> None:
    memory = sparse(64 << 30)
    assert len(memory) == 64 << 30

    def touch() -> None:
        memory[(64 << 30) - 1] = 7

    assert fork(touch).wait() == 0
    assert memory[(64 << 30) - 1] == 7, "shared with a forked child"
    assert isinstance(memory.obj, mmap.mmap)


def test_what_clients_sent_is_in_no_core_dump() -> None:
    memory = sparse(1 << 20)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    bounds = [(tuple(int(end, 16) for end in one.split(" ", 1)[0].split("-")), one) for one in maps if one]
    (found,) = [one for (first, end), one in bounds if first <= start < end]
    assert "dd" in re.search(r"VmFlags:(.*)", found)[1].split()  # type: ignore[index]
