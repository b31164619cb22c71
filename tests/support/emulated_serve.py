"""`mpbroker` where QEMU's user mode runs it: python -m tests.support.emulated_serve serve …

QEMU has a thread of its own in each process, which the kernel lists as one of the program's. The supervisor,
which may have none, does not count it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PosixPath

from mpbroker.cli.entry import main
from mpbroker.supervisor import child


class WithoutThreadOfQemu(PosixPath):
    """A directory of /proc with the threads that the program knows of."""

    def iterdir(self) -> Iterator[WithoutThreadOfQemu]:
        return iter(list(super().iterdir())[1:])


def replaced(path: str) -> Path:
    return WithoutThreadOfQemu(path) if path == "/proc/self/task" else Path(path)


if __name__ == "__main__":
    child.Path = replaced  # type: ignore[assignment, misc]
    main()
