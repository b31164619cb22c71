"""Reads all that some options name, as one task after another would, and prints what came of it as JSON.

A program of its own, so that tests can run it where they like: `python -m tests.reading.read_all OPTIONS`.
It prints {"offsets": {partition: [offset, …]}}, or {"error": class, "text": …} for an error of reading.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing

from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.columns import SCHEMA
from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import plan
from mpbroker.reading.read import read_range


def main() -> None:
    try:
        print(json.dumps({"offsets": read_all(json.loads(sys.argv[1]))}))
    except (OptionError, SourceUnavailable, DataLoss, CorruptLog) as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))


def read_all(given: dict[str, str]) -> dict[int, list[int]]:
    options = parse_options(given)
    with closing(open_catalog(options)) as catalog:
        tasks = plan(catalog, options)
    found: dict[int, list[int]] = {}
    for task in tasks:
        for batch in read_range(task, SCHEMA, options):
            found.setdefault(task.partition, []).extend(batch.column("offset").to_pylist())
    return found


if __name__ == "__main__":
    main()
