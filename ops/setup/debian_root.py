"""Unpacks Debian packages for arm64 into a directory: a compiler's sysroot, or emulated programs' root.

apt resolves and fetches with a configuration of its own, so that the system's architectures, sources and
packages stay as they are. Packages are only unpacked: none of their scripts run, and root is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# The oldest Debian that is promised: its C library and its Python are those of the wheel.
RELEASE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = "http://deb.debian.org/debian"
# The package of each tool.
TOOLS = {"apt-get": "apt", "dpkg-deb": "dpkg", "tar": "tar"}


class MissingTools(Exception):
    """Missing programs; the message names the packages to install."""


class FetchFailed(Exception):
    """apt cannot fetch the packages; the message has its output."""


def require(tools: dict[str, str]) -> None:
    """Raise MissingTools unless every program is on PATH. `tools`: the package of each program."""
    missing = {tool: package for tool, package in tools.items() if shutil.which(tool) is None}
    if missing:
        install = " ".join(sorted(set(missing.values())))
        raise MissingTools(f"there is no {', no '.join(missing)} here: apt-get install {install}")


def make(
    directory: Path, packages: Sequence[str], *, architecture: str = "arm64", release: str = RELEASE
) -> Path:
    """Unpack packages and their dependencies, unless an earlier call has done so. Return their root."""
    root, wanted = directory / "root", directory / "packages"
    named = "\n".join([architecture, release, *packages])
    if wanted.exists() and wanted.read_text() == named:
        return root
    require(TOOLS)
    if not KEYRING.exists():
        raise MissingTools(f"there is no {KEYRING} here: apt-get install debian-archive-keyring")
    shutil.rmtree(root, ignore_errors=True)
    configuration = _configure(directory / "apt", architecture, release)
    for archive in _fetch(configuration, packages):
        _extract(archive, root)
    wanted.write_text(named)
    return root


def _configure(place: Path, architecture: str, release: str) -> Path:
    """Write a configuration for an apt that sees no installed packages. Return its file."""
    for made in ("cache/archives/partial", "state/lists/partial"):
        (place / made).mkdir(parents=True, exist_ok=True)
    (place / "state" / "status").touch()
    (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} {release} main\n")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        # As the user that runs it: another one may not come so far.
        "APT::Sandbox::User": "",
        "Dir::Cache": f"{place}/cache",
        "Dir::Etc::sourcelist": f"{place}/sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": f"{place}/state",
        "Dir::State::status": f"{place}/state/status",
    }
    configuration = place / "apt.conf"
    configuration.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return configuration


def _fetch(configuration: Path, packages: Sequence[str]) -> list[Path]:
    """Have apt fetch the packages and their dependencies. Return the files."""
    archives = configuration.parent / "cache" / "archives"
    for old in archives.glob("*.deb"):
        old.unlink()
    environment = {**os.environ, "APT_CONFIG": str(configuration)}
    for command in (("update",), ("--yes", "--download-only", "install", *packages)):
        done = subprocess.run(
            ["apt-get", "--quiet=2", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            printed = done.stdout + done.stderr
            raise FetchFailed(f"apt-get {command[0]} of {MIRROR} ended with {done.returncode}:\n{printed}")
    return sorted(archives.glob("*.deb"))


def _extract(archive: Path, root: Path) -> None:
    """Unpack a package. Keep the links /bin, /lib and /sbin, which `dpkg-deb --extract` would replace."""
    for name in ("bin", "lib", "sbin"):
        if not (root / name).is_symlink():
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE)
    with files:
        unpack = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--directory", str(root)]
        subprocess.run(unpack, stdin=files.stdout, check=True)
    if files.returncode:
        raise FetchFailed(f"dpkg-deb cannot read {archive}, which apt has fetched: fetch it again")
