"""`mpbroker remote gc`: lists the objects that no ledger entry names, and has them deleted.

Only the owner of the ledger may delete, so the running broker's tier is asked to.
"""

from __future__ import annotations

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.host.local_broker import LocalBroker
from mpbroker.cli.remote.place import asked, opened, said_of_store
from mpbroker.cli.text.output import print_json, print_table
from mpbroker.client.times import format_time
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.tier.collector import ORPHAN_MS, orphans
from mpbroker.remote.tier.store_clock import store_ms


def gc(here: LocalBroker, url: str | None, *, delete: bool, as_json: bool) -> None:
    """Print the orphans that are old enough; with `delete` ask the tier to delete them."""
    if delete and url is not None:
        raise CliError("--delete needs the broker that owns the store: leave --url out", USAGE_ERROR)
    place, store = opened(here, url)
    with said_of_store():
        reader = LedgerReader(store)
        reader.read_to_end()
        if not reader.seq:
            raise CliError(f"{place} has no ledger: without it nothing is known to be an orphan")
        if reader.state.exported is not None:
            raise CliError(f"{place} was exported: only Apache Kafka knows what is an orphan there")
        before_ms = store_ms(store) - ORPHAN_MS
        found = sorted(one for one in orphans(store, reader.state) if one.modified_ms < before_ms)
    within_s = asked(here, on=True)["task_interval_ms"] / 1000 if delete and found else None
    if as_json:
        rows = [one._asdict() for one in found]
        print_json({"url": place, "objects": rows, "asked_to_delete": within_s is not None})
        return
    if not found:
        print("no orphans that are older than a day")
        return
    print_table(
        ["object", "bytes", "written"], [[one.name, one.size, format_time(one.modified_ms)] for one in found]
    )
    if within_s is None:
        print("Nothing is deleted: the tier of the broker does that once a day, or now with --delete.")
    else:
        print(f"The tier deletes them within {within_s:,.0f} s, or after its present uploads.")
