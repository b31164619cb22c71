"""`mpbroker backup` and `mpbroker restore`: copies of log directories as of one instant.

A copy is made in passes over the directories (`backup_copy`). The broker serves during all passes but the
last, which has little to copy: for it the supervisor pauses all processes (`mpbroker.supervisor.pause`). So a
broker that starts from the copy finds the same files as after a kill of all processes at that moment.
"""

from __future__ import annotations

import fcntl
import shlex
import sys
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.host.backup_copy import (
    INCOMING,
    Copy,
    Incoming,
    backup_lock,
    copy_back,
    held,
    remove_former,
    whole_copies,
)
from mpbroker.cli.host.local_broker import LocalBroker, by_log_dirs
from mpbroker.cli.host.log_files import checked, verify
from mpbroker.cli.text.output import counted, print_json
from mpbroker.cli.text.progress import progress_bar
from mpbroker.inspection import directory as inspected
from mpbroker.inspection.directory import InspectedDirectory
from mpbroker.inspection.findings import Finding, Severity
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import has_broker
from mpbroker.ipc.process import FatalError
from mpbroker.storage.names import ALL_DIRS, META_PROPERTIES, REMOTE_SEGMENTS

# The last pass, in the pause, begins when a pass copied less than this, or after so many passes.
_LAST_PASS_BYTES: Final = 32 << 20
_PASSES_MAX: Final = 6
_DAMAGED_COPY: Final = (
    "Records of the copy are damaged: see above. Remove the damaged files from it and run mpbroker "
    "backup again: it copies missing and changed files."
)
# A process may be starting: try for 30 s.
_PAUSE_ATTEMPTS, _RETRY_S = 150, 0.2


def backup(here: LocalBroker, target: Path, *, keep: int | None, as_json: bool) -> None:
    """Copy the log directories of a running broker, or the --log-dirs of a stopped broker.

    `keep`: the number of copies to keep; None: as in the last backup. Raises CliError, ControlError, OSError.
    """
    here.check()
    began = time.monotonic()
    with ExitStack() as held:
        control, log_dirs = held.enter_context(_originals(here))
        _refuse_nested(target, log_dirs)
        if not held.enter_context(backup_lock(target)):
            raise CliError(f"{target}: another mpbroker backup is writing there; wait for its end")
        copies = whole_copies(target)
        former = copies[-1] if copies else None
        _refuse_others(former, target / INCOMING, log_dirs)
        if keep is None:
            keep = former.manifest.keep if former is not None else 1
        incoming = Incoming(target, log_dirs, former)
        try:
            written, passes, paused_ms = _copy(incoming, control)
        finally:
            incoming.close()
        _verify(incoming)
        made = incoming.finish(paused_ms, keep)
        removed = remove_former(target, keep)
    if incoming.replaced:
        _warn(f"missing or changed in the copy before, and copied again: {_some(incoming.replaced)}")
    document = {
        "path": str(made.path),
        "log_dirs": made.manifest.log_dirs,
        "files": len(made.manifest.files),
        "bytes": made.manifest.size_bytes,
        "written_bytes": written,
        "passes": passes,
        "paused_ms": paused_ms,
        "keep": keep,
        "removed_copies": removed,
    }
    if as_json:
        print_json(document)
        return
    paused = f", paused for {paused_ms:,} ms" if control is not None else ""
    sys.stdout.write(
        f"{made.path}: {counted(len(made.manifest.files), 'file')}, {made.manifest.size_bytes:,} bytes; "
        f"{written:,} written in {counted(passes, 'pass', 'passes')} and {time.monotonic() - began:.1f} s"
        f"{paused}\n"
    )
    if removed:
        old = counted(removed, "older copy", "older copies")
        sys.stdout.write(f"removed {old}: {target} keeps {keep:,} (--keep)\n")


def check(target: Path, *, as_json: bool) -> None:
    """Read all of the newest copy. The exit code is 1 if it is damaged. Raises CliError, OSError."""
    with _newest(target) as copy:
        if problems := list(copy.problems()):
            raise CliError("\n".join([f"{copy.path} is damaged; run mpbroker backup again:", *problems]))
        if changed := copy.changed():
            _warn(f"changed since the copy was made, or moved without their times: {_some(changed)}")
        verify(copy.directories, as_json=as_json, damaged=_DAMAGED_COPY)


def restore(source: Path, log_dirs: Sequence[Path], *, as_json: bool) -> None:
    """Restore the newest copy into new or empty directories. Raises CliError, OSError."""
    with _newest(source) as copy:
        _restore(copy, log_dirs)
    if tiered := sum(len(list(path.glob(f"*/{REMOTE_SEGMENTS}"))) for path in log_dirs):
        _warn(
            f"{counted(tiered, 'partition')} may have records in an object store, which are not in a copy: "
            "start with the mpbroker.remote.url that the broker had. If it has written there since the copy "
            "was made, the restored one may not, and says so"
        )
    node = _node_id(log_dirs[0])
    command = ["mpbroker", "serve", "--log-dirs", ",".join(map(str, log_dirs))]
    if node != "1":
        command += ["-o", f"node.id={node}"]
    if as_json:
        print_json({"copy": str(copy.path), "log_dirs": list(map(str, log_dirs)), "start": command})
        return
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(copy.manifest.made_ms / 1000))
    sys.stdout.write(f"restored the copy of {made}. Start the broker with\n  {shlex.join(command)}\n")
    sys.stdout.write("and the settings it had: server.properties is not part of a copy\n")


def _restore(copy: Copy, log_dirs: Sequence[Path]) -> None:
    if problems := list(copy.problems()):
        advice = "move it away to restore the copy before it, or repair it"
        raise CliError("\n".join([f"{copy.path} is not whole: {advice}:", *problems]))
    _refuse_damaged(copy)
    if len(log_dirs) != len(copy.directories):
        raise CliError(
            f"--log-dirs: the copy is of {counted(len(copy.directories), 'directory', 'directories')} "
            f"({', '.join(copy.manifest.log_dirs)}); name as many, in that order",
            USAGE_ERROR,
        )
    for path in log_dirs:
        if path.exists() and (not path.is_dir() or any(one.name != "lost+found" for one in path.iterdir())):
            raise CliError(f"{path} is not empty: name a new directory, or empty this one", USAGE_ERROR)
    with progress_bar(copy.manifest.size_bytes) as update:
        for number, path in enumerate(log_dirs):
            path.mkdir(mode=0o750, parents=True, exist_ok=True)
            update(description=str(path))
            copy_back(copy, number, path, lambda count: update(advance=count))


@contextmanager
def _originals(here: LocalBroker) -> Iterator[tuple[ControlClient | None, list[Path]]]:
    """Yield a client of the running broker (None: no broker runs), and the log directories.

    The directories of a stopped broker are locked until the `with` block ends. Raises CliError, OSError.
    """
    named = [Path(name.strip()).absolute() for name in (here.log_dirs or "").split(",") if name.strip()]
    if named and not any(map(has_broker, named)):
        for path in named:
            if not (path / META_PROPERTIES).exists():
                raise CliError(
                    f"--log-dirs: {path} is no log directory: it has no {META_PROPERTIES}", USAGE_ERROR
                )
        known = named[0] / ALL_DIRS
        if known.exists() and (count := len(known.read_text().splitlines())) != len(named):
            raise CliError(f"--log-dirs: name all {count} directories that {known} lists", USAGE_ERROR)
        try:
            with inspected.locked(named):
                yield None, named
        except FatalError as error:
            raise CliError(str(error)) from error
        return
    control = here.control() if not named else by_log_dirs(here.log_dirs)
    status = control.call("status")
    log_dirs = []
    for one in status["log_dirs"]:
        if one["state"] == "offline":
            raise CliError(
                f"{one['log_dir']} is offline: a copy without it would lack partitions. Repair the disk and "
                "restart the broker (mpbroker docs troubleshooting)"
            )
        log_dirs.append(Path(f"/proc/{status['pid']}/cwd").resolve() / one["log_dir"])
        if not (log_dirs[-1] / META_PROPERTIES).exists():
            raise CliError(f"{log_dirs[-1]} cannot be seen from here: run this where the broker runs")
    yield control, log_dirs


def _copy(incoming: Incoming, control: ControlClient | None) -> tuple[int, int, int]:
    """Copy all files. Return the bytes written, the number of passes, and the broker's pause in ms."""
    with progress_bar(incoming.segment_bytes()) as update:
        update(description="copying")
        if control is None:
            return incoming.copy(lambda count: update(advance=count), at_rest=True), 1, 0
        written = [incoming.copy(lambda count: update(advance=count))]
        while written[-1] >= _LAST_PASS_BYTES and len(written) < _PASSES_MAX:
            written.append(incoming.copy(_nothing))
        update(description="copying what has changed, in a pause")
        last, paused_ms = _copy_in_pause(incoming, control)
    return sum(written) + last, len(written) + 1, paused_ms


def _nothing(_: int) -> None:
    """Ignore the size of a file: only the first pass shows progress."""


def _copy_in_pause(incoming: Incoming, control: ControlClient) -> tuple[int, int]:
    for _ in range(_PAUSE_ATTEMPTS):
        with control.connected() as ask:
            reply = ask("pause")
            if reply["paused"]:
                copied = incoming.copy(_nothing, at_rest=True)
                try:
                    reply = ask("resume")
                except ControlError as error:
                    raise CliError(
                        f"the copy is not finished: {error}. Run it again, best when less is written: what "
                        "is copied stays for that run"
                    ) from error
                return copied, round(reply["held_s"] * 1000)
        time.sleep(_RETRY_S)
    raise CliError(
        f"the broker could not be paused within 30 s: {reply['why']}. Run this again: what is copied is kept"
    )


def _verify(incoming: Incoming) -> None:
    """Check the copied partitions that have new segments. Raises CliError if only the copy is damaged."""
    new = incoming.new_partitions()
    directories = [inspected.open_directory(incoming.path / str(n)) for n in range(len(incoming.log_dirs))]
    for one in _damages(directories, new):
        original = _original(incoming, Path(one.path))
        if not _is_beginning(Path(one.path), original):
            incoming.forget(Path(one.path).parent)
            raise CliError(
                f"{one}: the copy is damaged, the original is not. Run the backup again to replace the copy"
            )
        _warn(f"the broker's own file is damaged: {_named(one, original)}")


def _damages(directories: Sequence[InspectedDirectory], wanted: Container[Path]) -> list[Finding]:
    """Read the `wanted` partitions and return the findings of damage. Raises OSError."""
    partitions = [one for directory in directories for one in directory.partitions if one.path in wanted]
    checked(partitions)
    return [
        one for partition in partitions for one in partition.all_findings if one.severity is Severity.DAMAGE
    ]


def _refuse_damaged(copy: Copy) -> None:
    """Check the copy's partitions that have changed since it was made. Raises CliError (damage), OSError."""
    if not (changed := copy.changed()):
        return
    _warn(f"changed since the copy was made, or moved without their times: {_some(changed)}")
    directories = [inspected.open_directory(path) for path in copy.directories]
    if damages := _damages(directories, {path.parent for path in changed}):
        advice = (
            "move it away to restore the copy before it, or copy its directories by cp -a and repair those "
            "(mpbroker log repair)"
        )
        raise CliError("\n".join([f"{copy.path} is damaged: {advice}:", *map(str, damages)]))


def _some(paths: Sequence[Path]) -> str:
    return f"{counted(len(paths), 'file')}, such as {paths[0]}" if len(paths) > 1 else str(paths[0])


def _warn(text: str) -> None:
    print(f"mpbroker: warning: {text}", file=sys.stderr)


def _original(incoming: Incoming, copied: Path) -> Path:
    number, *rest = copied.relative_to(incoming.path).parts
    return incoming.log_dirs[int(number)].joinpath(*rest)


def _named(one: Finding, original: Path) -> str:
    return str(one).replace(str(one.path), str(original), 1)


def _is_beginning(copied: Path, original: Path, piece_bytes: int = 1 << 20) -> bool:
    """Return whether the original, which may have grown, begins with the bytes of the copy."""
    if copied.is_dir():
        return True
    try:
        with copied.open("rb") as one, original.open("rb") as other:
            while piece := one.read(piece_bytes):
                if other.read(len(piece)) != piece:
                    return False
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _newest(target: Path) -> Iterator[Copy]:
    """Yield the newest whole copy, locked so that no backup removes it. Raises CliError, OSError."""
    while copies := whole_copies(target):
        with ExitStack() as stack:
            is_there = False
            with suppress(FileNotFoundError):
                is_there = stack.enter_context(held(copies[-1], fcntl.LOCK_SH))
            if is_there:
                yield copies[-1]
                return
    if (target / INCOMING).exists():
        why = "has no copy, only one that was not finished: run mpbroker backup again"
    elif target.is_dir():
        why = "has no copy: name a directory that mpbroker backup has filled"
    else:
        why = "does not exist: name a directory that mpbroker backup has filled"
    raise CliError(f"{target} {why}", USAGE_ERROR)


def _refuse_nested(target: Path, log_dirs: Sequence[Path]) -> None:
    resolved = target.resolve()
    for one in log_dirs:
        if resolved.is_relative_to(one.resolve()) or one.resolve().is_relative_to(resolved):
            raise CliError(
                f"{target}: name a directory that neither lies in {one} nor contains it", USAGE_ERROR
            )


def _refuse_others(former: Copy | None, incoming: Path, log_dirs: Sequence[Path]) -> None:
    """Raise CliError if a former or unfinished copy in the target is of other log directories."""
    for place in (incoming, *((former.path,) if former is not None else ())):
        for number, one in enumerate(log_dirs):
            there = place / str(number) / META_PROPERTIES
            if there.exists() and _identity(there) != _identity(one / META_PROPERTIES):
                raise CliError(
                    f"{place} is a copy of another log directory than {one}: name another directory",
                    USAGE_ERROR,
                )


def _identity(properties: Path) -> list[str]:
    return sorted(line for line in properties.read_text().splitlines() if not line.startswith("#"))


def _node_id(log_dir: Path) -> str:
    lines = _identity(log_dir / META_PROPERTIES)
    return next((line.partition("=")[2] for line in lines if line.startswith("node.id=")), "1")
