"""Who could have put something else in the place of a path."""

import os
from pathlib import Path

import pytest

from shm.ownership import UntrustedPath, check_path

NOBODY = 65_534
ME = os.getuid()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file in two directories that are nobody else's."""
    (tmp_path / "above" / "below").mkdir(parents=True, mode=0o750)
    made = tmp_path / "above" / "below" / "file"
    made.touch(mode=0o640)
    return made


def test_what_is_the_owners_alone(file: Path) -> None:
    check_path(file, ME)
    check_path(file.parent, ME)


def test_a_directory_with_the_sticky_bit_is_safe_above(file: Path) -> None:
    file.parent.parent.chmod(0o1777)
    check_path(file, ME)
    with pytest.raises(UntrustedPath, match=r"above can be written by all users \(mode 1777\)"):
        check_path(file.parent.parent, ME)


@pytest.mark.parametrize("level", ["file", "below", "above"])
@pytest.mark.parametrize(("bits", "whom"), [(0o020, "group"), (0o002, "all users")])
def test_others_may_write(file: Path, level: str, bits: int, whom: str) -> None:
    (open_one,) = [path for path in (file, *file.parents) if path.name == level]
    open_one.chmod(0o750 | bits)
    with pytest.raises(UntrustedPath, match=f"{level} can be written by {whom}.* Run chmod go-w "):
        check_path(file, ME)


@pytest.mark.parametrize("level", ["file", "below", "above"])
@pytest.mark.skipif(ME != 0, reason="only root can give files away")
def test_another_user_owns_it(file: Path, level: str) -> None:
    (theirs,) = [path for path in (file, *file.parents) if path.name == level]
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(UntrustedPath, match=f"{level} belongs to user {NOBODY}"):
        check_path(file, ME)


def test_symbolic_links(file: Path) -> None:
    """A link at the end is refused; above it is followed if its target is safe."""
    link = file.with_name("link")
    link.symlink_to(file)
    with pytest.raises(UntrustedPath, match="is a symbolic link"):
        check_path(link, ME)
    other = file.parent.parent.parent / "other"
    other.symlink_to(file.parent)
    check_path(other / "file", ME)
    file.parent.chmod(0o777)
    with pytest.raises(UntrustedPath, match="below can be written by all users"):
        check_path(other / "file", ME)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_path(tmp_path / "nothing", ME)
