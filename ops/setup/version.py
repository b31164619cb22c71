"""The version of the project, which the git tag says: python -m ops.setup.version

`v1.2.3` is 1.2.3. The third commit behind it is 1.2.4.dev3+g<commit>, and the 2,800th before the first tag is
0.1.0.dev2800+g<commit> (PEP 440). Whoever builds without git has the version from an sdist (PKG-INFO), from
an earlier build of the same copy, or says it in MPBROKER_VERSION, as packagers of distributions do.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIRST = "0.1.0"
# What the build leaves for the program; git knows nothing of it.
MODULE = Path("mpbroker", "config", "_version.py")
_DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?-(\d+)-g([0-9a-f]+)")
_PEP_440 = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


class NoVersion(Exception):
    """Nothing here says which version this is."""


def find(root: Path) -> str:
    """Find the version of the sources in `root`. Raises NoVersion."""
    found = os.environ.get("MPBROKER_VERSION") or _of_sdist(root) or _of_git(root) or _of_build(root)
    if found is None:
        raise NoVersion(
            f"{root} is neither a clone nor an sdist, so nothing says which version this is: use one of "
            "these, or set MPBROKER_VERSION"
        )
    if not _PEP_440.fullmatch(found):
        raise NoVersion(f"{found!r} is not a version as in PEP 440, such as 1.2.3 or 1.2.3rc1")
    return found


def write(root: Path, version: str) -> None:
    """Leave the version for the program, if another one or none is there."""
    text = f'"""Written by the build; ops/setup/version.py says from what."""\n\nVERSION = "{version}"\n'
    path = root / MODULE
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def of_description(text: str) -> str:
    """Return the version for what `git describe --long` says of a commit. Raises NoVersion."""
    found = _DESCRIBED.fullmatch(text)
    if found is None:
        raise NoVersion(f"git describe says {text!r}: tags of versions are v1.2.3 or v1.2.3rc1")
    major, minor, patch, before, behind, commit = found.groups(default="")
    if behind == "0":
        return f"{major}.{minor}.{patch}{before}"
    # Behind a candidate comes the version itself, behind a version the next one.
    after = int(patch) + (not before)
    return f"{major}.{minor}.{after}.dev{behind}+g{commit}"


def _of_sdist(root: Path) -> str | None:
    metadata = root / "PKG-INFO"
    if not metadata.exists():
        return None
    found = re.search(r"^Version: (\S+)$", metadata.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else None


def _of_git(root: Path) -> str | None:
    """Return the version by the commit that is checked out; None: this is no clone, or there is no git."""
    if not (root / ".git").exists():
        return None
    described = _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    if described is not None:
        return of_description(described)
    count, commit = _git(root, "rev-list", "--count", "HEAD"), _git(root, "rev-parse", "--short", "HEAD")
    return f"{FIRST}.dev{count}+g{commit}" if count and commit else None


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _of_build(root: Path) -> str | None:
    path = root / MODULE
    found = re.search(r'VERSION = "(.*)"', path.read_text("utf-8")) if path.exists() else None
    return found[1] if found else None


if __name__ == "__main__":
    print(find(ROOT))
