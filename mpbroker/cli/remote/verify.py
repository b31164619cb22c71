"""`mpbroker remote verify`: checks an object store by itself."""

from __future__ import annotations

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.remote.place import opened, said_of_store
from mpbroker.cli.text.output import counted, print_json
from mpbroker.cli.text.progress import progress_bar
from mpbroker.protocol.printable import printable
from mpbroker.remote.verification import NoLedger, Verified
from mpbroker.remote.verification import verify as verified_store


def verify(here: LocalBroker, url: str | None, *, deep: bool, as_json: bool) -> bool:
    """Print what was checked and what is wrong; return whether all is well."""
    url, store = opened(here, url)
    with said_of_store(), progress_bar(0) as update:
        try:
            found = verified_store(
                store,
                deep=deep,
                progress=lambda done, total: update(completed=done, total=total, description="segments"),
            )
        except NoLedger as error:
            raise CliError(f"{url}: {error}") from error
    if as_json:
        print_json({"url": url, "deep": deep, **document(found)})
    else:
        _print(url, found, deep=deep)
    return not found.problems


def document(found: Verified) -> dict[str, object]:
    return {
        "cluster_id": found.cluster_id,
        "entries": found.entries,
        "topics": found.topics,
        "segments": found.segments,
        "bytes": found.bytes,
        "orphans": found.orphans,
        "problems": [{"object": name, "problem": what} for name, what in found.problems],
    }


def _print(url: str, found: Verified, *, deep: bool) -> None:
    print(
        printable(
            f"{url} of cluster {found.cluster_id}: "
            f"{counted(found.entries, 'ledger entry', 'ledger entries')}, "
            f"{counted(found.segments, 'segment')} of {counted(found.topics, 'topic')}, {found.bytes:,} bytes"
        )
    )
    for name, what in found.problems:
        print(printable(f"bad: {name}: {what}"))
    if found.orphans:
        objects = counted(found.orphans, "object")
        print(f"{objects} of more than a day that the ledger does not name: mpbroker remote gc lists them")
    if not found.problems:
        print("All is whole." if deep else "All objects are there, with their sizes; --deep reads them.")
