"""Regions of shared memory with named blocks, public or private.

A region begins with a header page, which a process reads when it attaches the region:

    0     magic            8 bytes, names the kind of region
    8     layout version   u64; another version is refused
    16    owner pid        u64
    24    owner start time u64, clock ticks since boot: pid and start time together are the owner's epoch
    32    block count      u64
    40    total bytes      u64
    64    directory        per block 64 bytes: name (48, zero-padded), offset u64, size u64

A *public* region is a file on a tmpfs that other programs map read-only. Its space is reserved at creation,
so that a full tmpfs causes an error and not a SIGBUS later. A *private* region is anonymous memory that only
forked children share. The function `sparse` maps such memory without reserving it: untouched pages cost
nothing.

A `sparse` block of a public region is not reserved: the first writer of a part reserves that part, with
`fallocate` at the block's `offset`. A reader must not touch parts that no writer has announced: on a tmpfs,
reading a hole through a mapping would allocate a page.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from shm import procfs

PAGE_BYTES = 4096
CACHE_LINE_BYTES = 64

_HEADER = struct.Struct("<8sQQQQQ")
_ENTRY = struct.Struct("<48sQQ")
_NAME_BYTES = 48
_DIRECTORY_AT = 64
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
assert _ENTRY.size == 64


class LayoutMismatch(RuntimeError):
    """Raised when another version of the program made the region, or the file is damaged or not a region."""


class RegionUnavailable(OSError):
    """Raised when a region cannot be made or attached: no tmpfs, no space or no permission."""


@dataclass(frozen=True)
class Block:
    """A named part of a region. `align` is a power of two from a cache line to a page; a page if sparse."""

    name: str
    size: int
    align: int = CACHE_LINE_BYTES
    sparse: bool = False


def process_start_ticks(pid: int) -> int:
    """Return a process's start in clock ticks since boot; together with the pid this identifies a process."""
    return procfs.process(pid).start_ticks


def _unescaped(mount: str) -> str:
    """Decode a mount point of mountinfo, where spaces, tabs, newlines and backslashes are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds `path`, as the kernel names it (`tmpfs`, `ext4`, …)."""
    target = path.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mount = _unescaped(left.split()[4])
        inside = mount == "/" or str(target) == mount or str(target).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind


def refuse_disk(directory: Path) -> None:
    """Raise RegionUnavailable if the directory, which need not exist, would not be on a tmpfs or ramfs."""
    kind = file_system_of(directory)
    if kind not in ("tmpfs", "ramfs"):
        raise RegionUnavailable(
            errno.EINVAL,
            f"{directory} is on {kind}, not on a tmpfs: shared counters would be written to disk. "
            "Name a directory below /run or /dev/shm",
        )


def sparse(size: int) -> memoryview:
    """Return `size` bytes of unreserved memory that forked children share. Raises RegionUnavailable."""
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        made = mmap.mmap(-1, size, flags=flags)
        # A core dump would read all of the memory, and contain data of clients.
        made.madvise(mmap.MADV_DONTDUMP)
        return memoryview(made)
    except OSError as error:
        raise RegionUnavailable(
            error.errno,
            f"cannot map {size} bytes of address space: {os.strerror(error.errno or 0)}. "
            "Raise `ulimit -v`, or set vm.overcommit_memory to 0 or 1",
        ) from error


class Region:
    """A header and named blocks in shared memory: one process makes them, others attach or inherit them."""

    def __init__(self, buffer: memoryview, magic: bytes) -> None:
        self._buffer = buffer
        self.magic = magic
        header = _HEADER.unpack_from(buffer)
        _, self.layout_version, self.owner_pid, self.owner_start, count, self.size = header
        self._directory: dict[str, tuple[int, int]] = {}
        for i in range(count):
            name, offset, size = _ENTRY.unpack_from(buffer, _DIRECTORY_AT + i * _ENTRY.size)
            self._directory[name.rstrip(b"\0").decode()] = (offset, size)

    @classmethod
    def create_private(cls, magic: bytes, layout_version: int, blocks: list[Block]) -> Region:
        _check_layout(magic, blocks)
        total = _total_bytes(blocks)
        buffer = sparse(total)
        _write_header(buffer, magic, layout_version, blocks, total)
        return cls(buffer, magic)

    @classmethod
    def create_public(cls, path: Path, magic: bytes, layout_version: int, blocks: list[Block]) -> Region:
        """Make a region in a file (mode 0640) that appears when complete. Raises RegionUnavailable."""
        refuse_disk(path.parent)
        _check_layout(magic, blocks)
        total = _total_bytes(blocks)
        making = path.with_name(path.name + f".{os.getpid()}.new")
        try:
            # A process killed right here may have left it, with the pid that this process has now (a
            # container gives the same ones again).
            making.unlink(missing_ok=True)
            fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise RegionUnavailable(
                error.errno, f"cannot create {making}: {os.strerror(error.errno or 0)}"
            ) from error
        try:
            os.fchmod(fd, 0o640)
            os.ftruncate(fd, total)
            os.posix_fallocate(fd, 0, _placed(blocks)[0][1])
            for block, at in _placed(blocks):
                if not block.sparse:
                    os.posix_fallocate(fd, at, block.size)
            buffer = memoryview(mmap.mmap(fd, total))
            _write_header(buffer, magic, layout_version, blocks, total)
            making.rename(path)
        except OSError as error:
            making.unlink(missing_ok=True)
            raise RegionUnavailable(
                error.errno, f"cannot reserve {total} bytes for {path}: {os.strerror(error.errno or 0)}"
            ) from error
        finally:
            os.close(fd)
        return cls(buffer, magic)

    @classmethod
    def attach(cls, path: Path, magic: bytes, layout_version: int, *, writable: bool = False) -> Region:
        """Map a public region, read-only or `writable`. Raises LayoutMismatch, RegionUnavailable."""
        try:
            flags = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | flags)
        except OSError as error:
            raise RegionUnavailable(
                error.errno, f"cannot open {path}: {os.strerror(error.errno or 0)}"
            ) from error
        try:
            status = os.fstat(fd)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode) or size < PAGE_BYTES:
                raise LayoutMismatch(f"{path} is not a region: that has at least {PAGE_BYTES} bytes")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            buffer = memoryview(mmap.mmap(fd, size, access=access))
        finally:
            os.close(fd)
        found, version, _, _, count, total = _HEADER.unpack_from(buffer)
        if found != magic:
            kind = magic.decode("ascii", "replace")
            raise LayoutMismatch(f"{path} is not a {kind} region (it begins with {found!r})")
        if version != layout_version:
            raise LayoutMismatch(
                f"{path} has layout version {version}, this program reads version {layout_version}: "
                "use the version of the program that made it"
            )
        if total != size:
            raise LayoutMismatch(f"{path} has {size} bytes, but {total} in its header")
        if not _directory_is_sound(buffer, count):
            raise LayoutMismatch(f"{path} is damaged: its directory names blocks outside of its {size} bytes")
        return cls(buffer, magic)

    def block(self, name: str) -> memoryview:
        """Return the memory of a named block. Raises KeyError for an unknown name."""
        offset, size = self._directory[name]
        return self._buffer[offset : offset + size]

    def offset(self, name: str) -> int:
        """Return a block's offset in the region and its file. Raises KeyError for an unknown name."""
        return self._directory[name][0]

    def names(self) -> list[str]:
        return list(self._directory)

    def owner_is_alive(self) -> bool:
        """Return whether the process that made the region runs; False for a zombie or a reused pid."""
        try:
            owner = procfs.process(self.owner_pid)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return owner.start_ticks == self.owner_start and owner.state not in procfs.ENDED


def _check_layout(magic: bytes, blocks: list[Block]) -> None:
    """Check the arguments of `create_private` and `create_public`. Raises ValueError."""
    if len(magic) != 8:
        raise ValueError(f"a magic has 8 bytes, not {len(magic)}")
    names = [block.name for block in blocks]
    if not blocks or len(set(names)) != len(names):
        raise ValueError(f"a region has at least one block, and each its own name: {names}")
    for block in blocks:
        if not 0 < len(block.name.encode()) <= _NAME_BYTES:
            raise ValueError(f"block name {block.name!r} must have 1 to {_NAME_BYTES} bytes")
        if block.size <= 0 or block.align < CACHE_LINE_BYTES or block.align & (block.align - 1):
            raise ValueError(f"{block}: the size must be positive, the alignment a power of two")
        if block.align > PAGE_BYTES:
            raise ValueError(f"{block}: a mapping starts on a page, so no block is aligned to more than that")
        if block.sparse and (block.align != PAGE_BYTES or block.size % PAGE_BYTES):
            raise ValueError(f"{block}: a block reserved part by part shares no page with others")


def _directory_is_sound(buffer: memoryview, count: int) -> bool:
    """Return whether every entry is within the region, and its block is after the directory."""
    if count > (len(buffer) - _DIRECTORY_AT) // _ENTRY.size:
        return False
    end = _DIRECTORY_AT + count * _ENTRY.size
    for i in range(count):
        _, offset, size = _ENTRY.unpack_from(buffer, _DIRECTORY_AT + i * _ENTRY.size)
        if offset < end or offset % CACHE_LINE_BYTES or offset + size > len(buffer):
            return False
    return True


def _placed(blocks: list[Block]) -> list[tuple[Block, int]]:
    at = PAGE_BYTES * (1 + (_DIRECTORY_AT + len(blocks) * _ENTRY.size) // PAGE_BYTES)
    out = []
    for block in blocks:
        at = (at + block.align - 1) // block.align * block.align
        out.append((block, at))
        at += block.size
    return out


def _total_bytes(blocks: list[Block]) -> int:
    block, at = _placed(blocks)[-1]
    return (at + block.size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


def _write_header(buffer: memoryview, magic: bytes, version: int, blocks: list[Block], total: int) -> None:
    """Write the header and the directory, with plain stores: no other process sees the region yet."""
    for i, (block, at) in enumerate(_placed(blocks)):
        name = block.name.encode()
        start = _DIRECTORY_AT + i * _ENTRY.size
        buffer[start : start + _ENTRY.size] = _ENTRY.pack(name, at, block.size)
    pid = os.getpid()
    buffer[: _HEADER.size] = _HEADER.pack(magic, version, pid, process_start_ticks(pid), len(blocks), total)
