"""Decides whether the JVM or Python reads a query."""

from __future__ import annotations

from collections.abc import Mapping

from mpbroker.reading.options import ReadOptions
from spark_integration.schema import value_format


def reason_for_python(
    given: Mapping[str, str], options: ReadOptions, *, executors_are_here: bool
) -> str | None:
    """Return why only Python can read a batch or a stream; None if the JVM can."""
    if value_format(given) is not None:
        return "valueFormat is set, and Python decodes values"
    if options.read_mode == "remote":
        return "readMode is remote"
    if options.bootstrap_servers is not None and not executors_are_here:
        return "tasks on other hosts may have to fetch"
    return None
