"""Tries an object store, empties it, or counts records: `python ops/demo/bucket.py try|empty|count URL`."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

import mpbroker
from mpbroker.remote.store.object_store import ObjectStore, delete_checked
from mpbroker.remote.store.opening import open_store
from mpbroker.remote.store.self_test import check_store

TIMEOUT_MS = 30_000
RACE = "race/"
RACERS, ENTRIES = 4, 25
SIZES = {"1 KiB": 1 << 10, "16 MiB": 16 << 20}
TIMES = 10


def race(store: ObjectStore, racer: str) -> None:
    """Append entries to a log, each by a create of the next name, beside others that do the same."""
    number = 0
    for entry in range(ENTRIES):
        body = f"{racer} {entry}".encode()
        while True:
            number += 1
            name = f"{RACE}{number:06}"
            if store.create(name, body) or store.get(name) == body:
                break


def check_race(store: ObjectStore, url: str) -> None:
    """Let processes race. Each entry of each of them has to be there once, and no name may be left out."""
    command = [sys.executable, __file__, "race", url]
    racers = [subprocess.Popen([*command, str(number)]) for number in range(RACERS)]
    assert [one.wait() for one in racers] == [0] * RACERS, "a racer has failed"
    names = [one.name for one in store.list(RACE)]
    bodies = {store.get(name) for name in names}
    assert names == [f"{RACE}{number:06}" for number in range(1, RACERS * ENTRIES + 1)], names
    assert len(bodies) == RACERS * ENTRIES, "an entry is there twice, and another one is lost"
    store.delete(names)


def attempt(store: ObjectStore, url: str) -> None:
    check_store(store)
    check_race(store, url)
    print("it keeps the promises of a store, and processes that race for a ledger's entries have one each")
    for size, count in SIZES.items():
        body, writes, reads = bytes(count), [], []
        for number in range(TIMES):
            begun = time.monotonic()
            store.put(f"timed/{number}", [body], count)
            written = time.monotonic()
            assert store.get(f"timed/{number}") == body
            writes.append(written - begun)
            reads.append(time.monotonic() - written)
        print(f"{size}: written in {median(writes) * 1e3:,.1f} ms, read in {median(reads) * 1e3:,.1f} ms")
    store.delete(f"timed/{number}" for number in range(TIMES))


def main(action: str, url: str, *rest: str) -> None:
    if action == "count":
        print(mpbroker.read("orders", bucket=url).read_all().num_rows)
        return
    store = open_store(url, TIMEOUT_MS)
    match action:
        case "race":
            race(store, *rest)
        case "empty":
            delete_checked(store, [one.name for one in store.list("")], lambda: None)
        case "try":
            attempt(store, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
