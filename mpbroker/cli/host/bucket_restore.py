"""`mpbroker restore --from URL`: log directories of a cut that the broker has made in an object store."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

from mpbroker.cli.errors import USAGE_ERROR, CliError, of_flag
from mpbroker.cli.text.output import counted, print_json
from mpbroker.cli.text.progress import progress_bar
from mpbroker.client.times import parse_time
from mpbroker.config.remote import READ_ONLY
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.restore.files import begin_cluster, begin_epochs, finish, write_files
from mpbroker.remote.restore.plan import Plan, RestoreRefused, check_objects, make_plan, read_all, time_text
from mpbroker.remote.restore.producer_ids import jump_ahead
from mpbroker.remote.restore.revival import revived
from mpbroker.remote.restore.shipped import apply_all_shipped, bytes_of, shipped_after
from mpbroker.remote.restore.take_over import TakenLedger, check_silent, take_over, write_owner
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.store.self_test import StoreUnfit, check_store
from mpbroker.storage.names import META_PROPERTIES
from shm.clock import wall_ms

REQUEST_TIMEOUT_MS = 60_000


def is_url(source: str) -> bool:
    return "://" in source


def verify(url: str, *, before: str | None, as_json: bool) -> None:
    """Read all that a restore needs, and write nothing. Raises CliError."""
    with _explained(url):
        store = open_store(url, REQUEST_TIMEOUT_MS)
        plan = _checked(store, before)
        with progress_bar(plan.bundle_bytes + plan.segment_bytes) as update:
            update(description="reading")
            read_all(store, plan, lambda count: update(advance=count))
        for event in shipped_after(store, plan):
            bytes_of(store, event)
    if as_json:
        print_json(_document(plan))
    else:
        sys.stdout.write(f"{_described(plan)}: all of it can be read, and is as it was written\n")


class Kind(Enum):
    """The relation of a restored broker to the object store."""

    TRIAL = auto()
    """The same broker, as long as it writes nothing into the object store."""
    OWNER = auto()
    """The owner of the ledger, in place of the broker that was."""
    FORK = auto()
    """A cluster of its own, which only reads the object store."""


def kind_of(*, takes_over: bool, forks: bool) -> Kind:
    return Kind.OWNER if takes_over else Kind.FORK if forks else Kind.TRIAL


def restore(
    url: str, log_dirs: Sequence[Path], kind: Kind, *, before: str | None, forced: bool, as_json: bool
) -> None:
    """Write the log directories of the newest cut, or the newest up to `before`. Raises CliError, OSError."""
    taken: TakenLedger | None = None
    with _explained(url):
        store = open_store(url, REQUEST_TIMEOUT_MS)
        plan = _checked(store, before)
        _check_directories(plan, log_dirs)
        if kind is Kind.OWNER:
            if plan.ledger.last is not None and not forced:
                check_silent(plan.ledger.last, wall_ms())
            # Whoever relies on a fence has to know that the store keeps its promise.
            check_store(store)
            plan, taken = take_over(lambda: revived(store, _checked(store, before)), is_forced=forced)
        _write(store, plan, log_dirs, taken, forks=kind is Kind.FORK)
    command = _command(url, plan, log_dirs, forks=kind is Kind.FORK)
    if as_json:
        print_json(_document(plan) | {"log_dirs": list(map(str, log_dirs)), "start": command})
        return
    sys.stdout.write(f"restored {_described(plan)}. Start the broker with\n  {shlex.join(command)}\n")
    sys.stdout.write("and the settings it had: server.properties is not part of a cut\n")
    if plan.removed:
        gone = counted(plan.removed, "segment")
        sys.stdout.write(f"{gone} that retention or users have removed since the cut are not restored\n")
    if kind is Kind.TRIAL:
        sys.stdout.write(
            "It reads the object store and writes nothing there; --take-over would make it the owner\n"
        )
    elif kind is Kind.FORK:
        sys.stdout.write(
            "It is a cluster of its own: it writes nothing into the object store, and reads segments there "
            "until their owner deletes them\n"
        )


def _write(
    store: ObjectStore, plan: Plan, log_dirs: Sequence[Path], taken: TakenLedger | None, *, forks: bool
) -> None:
    for path in log_dirs:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    with progress_bar(plan.bundle_bytes) as update:
        update(description="downloading")
        write_files(store, plan, log_dirs, lambda count: update(advance=count))
    plan = apply_all_shipped(store, plan, log_dirs)
    if taken is not None:
        begin_epochs(plan, log_dirs)
        jump_ahead(plan.manifest.directories, log_dirs, plan.ledger.generation - plan.generation)
        write_owner(log_dirs[0], taken)
    if forks:
        begin_cluster(log_dirs)
    finish(log_dirs)


def _checked(store: ObjectStore, before: str | None) -> Plan:
    before_ms = None if before is None else of_flag("--before", before, parse_time, wall_ms())
    plan = make_plan(store, before_ms)
    check_objects(store, plan)
    return plan


def _check_directories(plan: Plan, log_dirs: Sequence[Path]) -> None:
    had = plan.manifest.log_dirs
    if len(log_dirs) != len(had):
        count = counted(len(had), "directory", "directories")
        raise CliError(f"--log-dirs: the cut is of {count} ({', '.join(had)}); name as many, in that order")
    for path in log_dirs:
        if path.exists() and (not path.is_dir() or any(one.name != "lost+found" for one in path.iterdir())):
            was = ". It has a broker's log, perhaps of an earlier restore" * (path / META_PROPERTIES).exists()
            raise CliError(f"{path} is not empty: name a new directory, or empty this one{was}", USAGE_ERROR)


def _command(url: str, plan: Plan, log_dirs: Sequence[Path], *, forks: bool) -> list[str]:
    options = {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": url,
        **({READ_ONLY: "true"} if forks else {}),
        **({"node.id": str(plan.manifest.broker_id)} if plan.manifest.broker_id != 1 else {}),
    }
    named = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["mpbroker", "serve", "--log-dirs", ",".join(map(str, log_dirs)), *named]


def _described(plan: Plan) -> str:
    partitions = counted(len(plan.manifest.directories), "partition")
    segments = counted(sum(map(len, plan.segments.values())), "segment")
    return (
        f"the cut of {time_text(plan.cut.taken_ms)}: {partitions}, {plan.manifest.size_bytes:,} bytes of "
        f"files, {segments} of {plan.segment_bytes:,} bytes in the object store{_shipped(plan)}"
    )


def _shipped(plan: Plan) -> str:
    ledger = plan.ledger
    if not (plan.takes_shipped and ledger.state.shipped and ledger.last):
        return ""
    return f", and all that was acknowledged after it, until {time_text(ledger.last.time_ms)}"


def _document(plan: Plan) -> dict[str, object]:
    return {
        "cut": time_text(plan.cut.taken_ms),
        "partitions": len(plan.manifest.directories),
        "bytes": plan.manifest.size_bytes,
        "segments": sum(map(len, plan.segments.values())),
        "segment_bytes": plan.segment_bytes,
        "removed_segments": plan.removed,
    }


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except (RestoreRefused, LedgerDamaged, StoreRefused, StoreUnfit, StoreError) as error:
        raise CliError(f"{url}: {error}") from error
