"""`mpbroker remote status`: what the object store has, what waits, and where partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.remote.place import asked
from mpbroker.cli.text.output import counted, print_groups, print_json, print_table
from mpbroker.cli.text.sizes import binary_size
from mpbroker.client.times import format_time
from mpbroker.ipc.nodes import NODES_FILE, Nodes
from mpbroker.ipc.replaced_files import read_json
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.owner import OwnerDamaged, read_owner
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_offsets
from mpbroker.storage.names import LOG_STARTS, segment_name
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.segments import segments_of

# A store that does not answer shall not hold up what the broker says.
LEDGER_TIMEOUT_MS: Final = 5_000


def status(here: LocalBroker, *, as_json: bool) -> None:
    """Print the state of the tier, and the last entry of its ledger."""
    found = asked(here)
    directory = Path(found["log_dirs"][0])
    found |= _owner(directory) | _ledger(found["url"]) | {"replicas": _replicas(directory)}
    if as_json:
        print_json(found)
    else:
        print_groups(_groups(found, int(time.time() * 1000)))


def _owner(directory: Path) -> dict[str, Any]:
    try:
        owner = read_owner(directory)
    except (OSError, OwnerDamaged) as error:
        return {"owner": None, "generation": None, "standbys": [], "owner_error": str(error)}
    if owner is None:
        return {"owner": None, "generation": None, "standbys": []}
    return {"owner": owner.nonce, "generation": owner.generation, "standbys": owner.standbys}


def _replicas(directory: Path) -> list[int]:
    """Return the brokers that serve reads, as clients are told of them."""
    nodes = read_json(directory / NODES_FILE, Nodes)
    return [one.id for one in nodes.nodes if one.is_replica] if nodes is not None else []


def _ledger(url: str) -> dict[str, Any]:
    """Return the last entry, as the store has it; the reason if it cannot be read from here."""
    try:
        reader = LedgerReader(open_store(url, LEDGER_TIMEOUT_MS))
        reader.read_to_end()
    except (StoreError, StoreRefused, LedgerDamaged) as error:
        return {"last_entry": None, "last_entry_ms": None, "ledger_error": str(error)}
    return {"last_entry": reader.seq, "last_entry_ms": None if reader.last is None else reader.last.time_ms}


def _of_standby(found: Mapping[str, Any], now_ms: int) -> Mapping[str, Any]:
    lag, since = found["standby"], "the mirror has never had all of the ledger"
    if lag["behind_s"] >= 0:
        since = f"the mirror had all of the ledger {lag['behind_s']:,.0f} s ago"
    lacks = f"{counted(lag['entries'], 'entry', 'entries')}, {binary_size(lag['size'])} to be downloaded"
    cut = _since(lag["cut_ms"], now_ms) if lag["cut_ms"] else "none"
    return {"state": f"stands by: {since}", "lacks": lacks, "ledger": _entry(found, now_ms), "cut": cut}


def _groups(found: Mapping[str, Any], now_ms: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if found["standby"] is not None:
        yield found["url"], _of_standby(found, now_ms)
        return
    # Of a tier that is stopped the last error says more: a status is cut off.
    status = "nothing is uploaded or deleted" if found["fenced"] else found["status"]
    store: dict[str, Any] = {"state": f"{found['state']}: {status.removeprefix('reads only: ')}"}
    if found["down_since_ms"] is not None:
        store["down since"] = _since(found["down_since_ms"], now_ms)
    if found["fenced"] or found["down_since_ms"] is not None:
        store["last error"] = found["last_error"]
    store["owner"] = f"{found['owner']}, generation {found['generation']}"
    store["leads"] = _lease(found)
    if found["replicas"]:
        store["serve reads"] = ", ".join(f"broker {one}" for one in found["replicas"])
    store["ledger"] = _entry(found, now_ms)
    store["has"] = _segments(found, "")
    store["waits for upload"] = _segments(found, "pending_")
    if found["pending_since_ms"] is not None:
        store["oldest of these"] = _since(found["pending_since_ms"], now_ms)
    store["to be deleted"] = _segments(found, "removed_")
    if found["last_cut_ms"] is not None or found["state"] not in {"stopped", "reads only"}:
        store["newest cut"] = _cut(found, now_ms)
    yield found["url"], store
    yield (
        "since the broker began",
        {
            "uploaded": _segments(found, "copied_"),
            "downloads": f"{found['fetches']:,}, {binary_size(found['fetched_bytes'])}",
            "failed": f"{found['errors']:,} of uploads and deletions, {found['fetch_errors']:,} downloads",
            "cuts": f"{found['cuts']:,}, and {found['cuts_skipped']:,} that could not be made",
            "cache": f"{binary_size(found['cache_bytes'])} of {binary_size(found['cache_limit_bytes'])}, "
            f"{found['cache_hits']:,} hits",
        },
    )


def _entry(found: Mapping[str, Any], now_ms: int) -> str:
    if "ledger_error" in found:
        return f"cannot be read by this command: {found['ledger_error']}"
    if found["last_entry_ms"] is None:
        return "has no entry"
    return f"entry {found['last_entry']:,}, {_since(found['last_entry_ms'], now_ms)}"


def _cut(found: Mapping[str, Any], now_ms: int) -> str:
    """Return when the newest cut was made: a restore has nothing that is younger."""
    every = f"one is due every {found['cut_interval_ms'] / 1000:,g} s"
    if found["last_cut_ms"] is None:
        return f"none, and {every}"
    paused = f"the broker paused for {found['last_cut_pause_us'] / 1000:,.1f} ms" if found["cuts"] else ""
    return ", ".join(filter(None, (_since(found["last_cut_ms"], now_ms), paused, every)))


def _lease(found: Mapping[str, Any]) -> str:
    standbys = "standby: " + (", ".join(f"broker {one}" for one in found["standbys"]) or "none")
    if not found["leads"]:
        return f"no: its lease has run out; {standbys}"
    if found["lease_left_ms"] is None:
        return f"yes, without a lease; {standbys}"
    return f"yes; its lease ends in {found['lease_left_ms'] / 1000:.0f} s unless renewed; {standbys}"


def _segments(found: Mapping[str, Any], prefix: str) -> str:
    return f"{counted(found[f'{prefix}segments'], 'segment')}, {binary_size(found[f'{prefix}bytes'])}"


def _since(time_ms: int, now_ms: int) -> str:
    return f"{format_time(time_ms)}, {max(now_ms - time_ms, 0) // 1000:,} s ago"


def of_topic(here: LocalBroker, topic: str, *, as_json: bool) -> None:
    """Print the partitions of a topic, by their files. Raises CliError."""
    rows = sorted(partitions(asked(here)["log_dirs"], topic), key=lambda row: row["partition"])
    if not rows:
        raise CliError(f"{topic}: the broker's directories have no partition of it")
    if as_json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


def partitions(log_dirs: Sequence[str], topic: str) -> Iterator[dict[str, Any]]:
    """Yield where each partition begins and ends, here and in the store, by its files. Raises CliError."""
    for name in log_dirs:
        directory = Path(name)
        found = [path for path in directory.glob(f"{_escaped(topic)}-*") if path.is_dir()]
        numbered = [(path, path.name[len(topic) + 1 :]) for path in found]
        if not any(number.isdecimal() for _, number in numbered):
            continue
        try:
            starts = read_offsets(directory / LOG_STARTS)
            for path, number in numbered:
                if number.isdecimal():
                    yield _partition(path, int(number), starts.get((topic, int(number)), 0))
        except CheckpointCorrupt as error:
            raise CliError(str(error)) from error


def _partition(path: Path, number: int, log_start: int) -> dict[str, Any]:
    remote, local = read_remote_segments(path), segments_of(path)
    sizes = [_size(path / segment_name(base)) for base in local]
    return {
        "partition": number,
        "log_start": max(log_start, remote.start) if remote else max(log_start, local[0] if local else 0),
        "remote_end": remote.end if remote else None,
        "remote_segments": len(remote),
        "remote_bytes": sum(one.size for one in remote),
        "local_start": local[0] if local else None,
        "local_segments": len(local),
        "local_bytes": sum(sizes),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        # Deleted meanwhile.
        return 0


def _escaped(topic: str) -> str:
    # Topic names have no other characters of patterns.
    return topic.replace("[", "[[]")
