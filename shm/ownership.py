"""Checks that no other user could have replaced a file or directory that this program opens.

In a directory that all users may write, such as /dev/shm, any user can create a file before its owner does.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

_ALL_USERS = ["0", "0", str((1 << 32) - 1)]


class UntrustedPath(Exception):
    """Raised when a user other than the expected one could replace the path."""


def check_path(path: Path, owner: int) -> None:
    """Check that only `owner` (a uid) and root can replace `path` or a directory above it.

    Raises UntrustedPath if `path` is a symbolic link, belongs to another user, can be written by its group or
    others, or is below a directory in which another user can replace files. Raises OSError.
    """
    path = path.absolute()
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedPath(f"{path} is a symbolic link. Name its target")
    if status.st_uid != owner:
        raise UntrustedPath(f"{path} belongs to {_user(status.st_uid)}, not to {_user(owner)}")
    if status.st_mode & 0o022:
        raise UntrustedPath(
            f"{path} can be written by {_others(status)} ({_mode(status)}). Run chmod go-w {path}"
        )
    for directory in path.parents:
        _check_directory(directory, owner)


def _check_directory(directory: Path, owner: int) -> None:
    """Raise UntrustedPath if another user can replace files in the directory. A sticky bit prevents that."""
    status = directory.lstat()
    if status.st_uid not in (0, owner) and not _is_unmapped(status.st_uid):
        raise UntrustedPath(f"{directory} belongs to {_user(status.st_uid)}, who can replace the files in it")
    if stat.S_ISLNK(status.st_mode):
        check_directories(directory.resolve(), owner)
    elif status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        who = f"{_others(status)} ({_mode(status)}), who can replace the files in it"
        raise UntrustedPath(f"{directory} can be written by {who}. Run chmod go-w {directory}")


def check_directories(directory: Path, owner: int) -> None:
    """Check that no other user can replace files in a directory or above. Raises UntrustedPath, OSError."""
    for each in (directory, *directory.parents):
        _check_directory(each, owner)


@functools.cache
def _overflow_uid() -> int | None:
    """Return the uid that this user namespace shows for unmapped users; None if it maps all users."""
    if Path("/proc/self/uid_map").read_text().split() == _ALL_USERS:
        return None
    return int(Path("/proc/sys/kernel/overflowuid").read_text())


def _is_unmapped(uid: int) -> bool:
    """Return whether the uid stands for users outside of this user namespace, such as the host's root."""
    return uid == _overflow_uid()


def _user(uid: int) -> str:
    return f"user {uid}"


def _others(status: os.stat_result) -> str:
    return "all users" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}"
