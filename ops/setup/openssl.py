"""The current LTS of OpenSSL for this checkout: `make openssl` (ARCHIVE=, INTO=).

AES-GCM for AVX-512 came with OpenSSL 3.1, and distributions of long support still have 3.0. This builds the
two libraries from their published source, beside the system's and never in their place: who puts `lib` into
LD_LIBRARY_PATH has them (the soname is the same), nobody else.

    .openssl/openssl-3.5.9/lib/libcrypto.so.3 …   a release, renamed into place when it was built and tried
    .openssl/lib -> openssl-3.5.9/lib             the release in use, switched in one step
    .openssl/work/                                what is being built, and its log; not there when all is well
    .openssl/lock                                 held by who builds; where anything else is, nothing is done
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
URLS = (
    "https://github.com/openssl/openssl/releases/download/openssl-{version}/openssl-{version}.tar.gz",
    "https://www.openssl.org/source/openssl-{version}.tar.gz",
)
# Of an older one, for networks that lead to a distribution's archive alone.
DISTRIBUTED = ("http://deb.debian.org/debian/pool/main/o/openssl/openssl_{version}.orig.tar.gz",)
SILENCE_S = 30.0
CHUNK_BYTES = 1 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
LIBRARIES = ("libcrypto.so.3", "libssl.so.3")
# All that there is in a directory of ours.
LOCK = "lock"
OWN_NAMES = re.compile(r"lock|work|lib|lib\.new|openssl-\d[\d.]*")
# The programs would need the newer libraries in their path, and the system has its own.
OPTIONS = ("shared", "no-apps", "no-docs", "no-tests")
# Some distributions have perl without what comes with it.
PERL_MODULES = ("FindBin", "IPC::Cmd", "File::Compare", "Getopt::Long")
# Of a make around us, and of libraries that the compiler and perl should not get.
NOT_HANDED_ON = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LD_LIBRARY_PATH")
LINES_TOLD = 15
WRONG = re.compile(r"\berror\b|\*\*\* \[|not found|cannot|can't", re.IGNORECASE)


class SetupError(Exception):
    """Nothing was changed; says what is missing or wrong, where, and what to do."""


@dataclass(frozen=True)
class Release:
    """`sha256`: of the archive that the project has published, in hexadecimal."""

    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"openssl-{self.version}"


# The first is what is wanted, the second what Debian 13 has; an ARCHIVE may be any of them.
RELEASES = (
    Release("3.5.9", "603f5602e2eef00d77fbd429d34dcd5822bb301757a1bc9cdb24c670f1eb859a"),
    Release("3.5.7", "a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8"),
)


def digest_of(archive: Path) -> str:
    with open(archive, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recognised(archive: Path, releases: Sequence[Release] = RELEASES) -> Release:
    """Which release's source an archive is, by its SHA-256. Raises SetupError."""
    try:
        found = digest_of(archive)
    except OSError as error:
        raise SetupError(f"{archive} cannot be read: {error.strerror}") from error
    for release in releases:
        if release.sha256 == found:
            return release
    known = "\n".join(f"  {release.sha256}  {release.name}.tar.gz" for release in releases)
    raise SetupError(f"{archive} is not used: its SHA-256 is\n  {found}\nand none of\n{known}")


def in_use(home: Path, release: Release) -> bool:
    """Whether `home/lib` is that release, with both libraries."""
    lib = home / "lib"
    same = lib.resolve() == (home / release.name / "lib").resolve()
    return same and all((lib / name).is_file() for name in LIBRARIES)


def publish(built: Path, home: Path, release: Release) -> None:
    """Puts a finished tree in its place. `lib` leads to the old release or the new one at every moment."""
    place = home / release.name
    if place.exists():
        shutil.rmtree(place)
    built.rename(place)
    link = home / "lib.new"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(release.name) / "lib")
    link.replace(home / "lib")
    for older in home.glob("openssl-*"):
        if older != place:
            shutil.rmtree(older)


# ---- the source


def download(release: Release, target: Path, urls: Sequence[str]) -> None:
    """From the first place that has the right bytes. Raises SetupError; OSError if they cannot be kept."""
    refused = []
    for url in (url.format(version=release.version) for url in urls):
        print(f"openssl: fetching {url}", flush=True)
        try:
            with urllib.request.urlopen(url, timeout=SILENCE_S) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise  # for the next place, too
            refused.append(f"  {url}: {getattr(error, 'reason', None) or error}")
            continue
        if (found := digest_of(target)) == release.sha256:
            return
        refused.append(f"  {url}: SHA-256 {found}")
    raise SetupError(
        f"the source of OpenSSL {release.version} (SHA-256 {release.sha256}) cannot be had:\n"
        + "\n".join(refused)
        + f"\nfetch {release.name}.tar.gz where there is a network, then: make openssl ARCHIVE=/path/to/it"
    )


def fetched(releases: Sequence[Release], home: Path, work: Path) -> tuple[Release, Path | None]:
    """The source of the first one; else of the last, or no source if that is in use. Raises SetupError."""
    wanted, last = releases[0], releases[-1]
    target = work / "source.tar.gz"
    try:
        download(wanted, target, URLS)
    except SetupError as error:
        print(f"openssl: {error}\nopenssl: so it is {last.version}, as Debian hands it out", flush=True)
        if in_use(home, last):
            return last, None
        try:
            download(last, target, DISTRIBUTED)
        except SetupError as also:
            print(f"openssl: {also}", flush=True)
            raise error from also
        return last, target
    return wanted, target


# ---- the build


def environment(**more: str) -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_HANDED_ON} | more


def compiler() -> Sequence[str]:
    return os.environ.get("CC", "").split() or ("cc",)


def missing(succeeds: Callable[[Sequence[str], str], bool]) -> list[str]:
    """The Debian packages of what a build needs and this machine has not.

    `succeeds`: runs a command with a text as its input; whether it is there and exits with 0.
    """
    perl = ["perl", *(f"-M{module}" for module in PERL_MODULES), "-e", "1"]
    needs = {
        "perl": (perl, ""),
        "make": (["make", "--version"], ""),
        "tar": (["tar", "--version"], ""),
        "gzip": (["gzip", "--version"], ""),
        "gcc libc6-dev": ([*compiler(), "-E", "-xc", "-"], "#include <stdlib.h>\n"),
    }
    return [package for package, (command, text) in needs.items() if not succeeds(command, text)]


def _succeeds(command: Sequence[str], text: str) -> bool:
    try:
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def configuration_dir() -> str:
    """Where the system's OpenSSL has openssl.cnf and its authorities: the new one is to use the same."""
    return str(Path(ssl.get_default_verify_paths().openssl_cafile).parent)


def complaints(output: str) -> str:
    """What is wrong according to a build's output: beside a failure others go on, so it is not the end."""
    lines = output.splitlines()
    return "\n".join(([line for line in lines if WRONG.search(line)] or lines)[-LINES_TOLD:])


def _run(command: Sequence[str], source: Path, log: Path) -> None:
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        start = output.tell()
        # With the lock: if we are killed, who comes next waits until this one has ended, too.
        done = subprocess.run(
            command,
            cwd=source,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            close_fds=False,
            check=False,
        )
    if done.returncode:
        told = complaints(log.read_bytes()[start:].decode(errors="replace"))
        raise SetupError(
            f"{' '.join(command)} failed with {done.returncode}; all it said is in {log}:\n{told}"
        )


def build(archive: Path, release: Release, home: Path, work: Path) -> Path:
    """The tree to publish, below `work`. Raises SetupError."""
    source, stage, log = work / release.name, work / "stage", work / "build.log"
    prefix = (home / release.name).resolve()
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    print(f"openssl: building OpenSSL {release.version}, some minutes; its output is in {log}", flush=True)
    _run(["tar", "-xzf", str(archive.resolve()), "-C", str(work)], work, log)
    _run(
        [
            *("perl", "Configure", f"--prefix={prefix}", "--libdir=lib"),
            *(f"--openssldir={configuration_dir()}", *OPTIONS),
        ],
        source,
        log,
    )
    # One after the other: each target is a make of its own, and two of them write the same files.
    for target in ("build_libs", "build_modules", "install_runtime_libs", "install_modules"):
        _run(["make", jobs, target, f"DESTDIR={stage}"], source, log)
    return stage / prefix.relative_to("/")


def try_out(built: Path, release: Release) -> None:
    """This Python has to take the new libraries, or the broker would have two. Raises SetupError."""
    code = "import ssl; ssl.create_default_context(); print(ssl.OPENSSL_VERSION)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(LD_LIBRARY_PATH=str(built / "lib")),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"{sys.executable} cannot use OpenSSL {release.version}:\n{done.stderr.strip()}")
    if done.stdout.split()[:2] != ["OpenSSL", release.version]:
        raise SetupError(
            f"{sys.executable} has an OpenSSL of its own ({done.stdout.strip()}) and does not take another: "
            "use a Python that is linked with the system's, such as the distribution's"
        )


def check_is_ours(home: Path) -> None:
    """What is not in use there will be removed, so nothing may be somebody else's. Raises SetupError."""
    found = sorted(path.name for path in home.iterdir())
    others = [name for name in found if not OWN_NAMES.fullmatch(name)]
    if others or (found and LOCK not in found):
        raise SetupError(
            f"{home} is no directory of make openssl: {(others or found)[0]} is in it. Name one of its own"
        )


@contextlib.contextmanager
def alone(home: Path) -> Iterator[Path]:
    """Nobody else builds in `home` meanwhile. Gives an empty directory; what a killed build left is gone.
    Raises SetupError.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        check_is_ours(home)
        lock = open(home / LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise SetupError(f"{home} cannot be written: {error.strerror}") from error
    with lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"openssl: waiting for another build in {home}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        work = home / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
        # Kept where something failed: the log says why.
        shutil.rmtree(work)


def install(home: Path, archive: Path | None, releases: Sequence[Release] = RELEASES) -> Release:
    """The release that is then in use: the archive's, else the first that can be had. Raises SetupError."""
    release = recognised(archive, releases) if archive else releases[0]
    if in_use(home, release):
        return release
    if packages := missing(_succeeds):
        raise SetupError(f"missing for the build; please install: sudo apt-get install {' '.join(packages)}")
    with alone(home) as work:
        # Another one may have built it while we waited.
        if archive is None and not in_use(home, release):
            release, archive = fetched(releases, home, work)
        if archive is not None and not in_use(home, release):
            built = build(archive, release, home, work)
            try_out(built, release)
            publish(built, home, release)
    return release


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--archive", type=Path, help="its source, where there is no network")
    parser.add_argument("--into", type=Path, default=ROOT / ".openssl")
    options = parser.parse_args()
    home = options.into.resolve()
    try:
        release = install(home, options.archive)
    except (SetupError, OSError) as error:
        print(f"openssl: {error}", file=sys.stderr)
        return 1
    print(f"openssl: OpenSSL {release.version} is in {home / 'lib'}")
    if home == ROOT / ".openssl":
        print("openssl: make run, make test, make bench… of this checkout use it from now on")
    print(f"openssl: anything else with LD_LIBRARY_PATH={home / 'lib'}; docs/OPERATING.md has systemd's way")
    return 0


if __name__ == "__main__":
    sys.exit(main())
