"""Plans a query for the JVM reader, in a Python worker of Spark's, as Spark runs its own planners.

It reads a request and writes a manifest; both are JSON with their length in front. The Python source makes
the plan. (Spark: PythonPlannerRunner, pyspark/sql/worker/plan_data_source_read.py.)
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Final

from pyspark.sql.types import StructType
from pyspark.sql.worker.utils import worker_run

from mpbroker.reading.conditions import Condition, Operator
from mpbroker.reading.manifest import manifest_of
from mpbroker.reading.options import parse_options
from spark_integration.schema import DECODES, value_format
from spark_integration.source import MpbrokerReader

_LENGTH = struct.Struct(">i")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def manifest(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request {options, schema, conditions} with the plan as JSON.

    The plan has every row that fulfils the conditions. Spark evaluates them on all rows of the plan.
    The answer is {"declined": why} if only Python can read the query. Raises the Python source's errors.
    """
    options = parse_options(request["options"])
    if value_format(request["options"]) is not None:
        return {"declined": DECODES}
    schema = StructType.fromJson(json.loads(request["schema"]))
    reader = MpbrokerReader(request["options"], schema)
    tasks = reader.plan_tasks([_condition(**one) for one in request["conditions"]])
    return manifest_of([task.range for task in tasks], options)


def _condition(column: str, operator: Operator, value: Any, *, negated: bool) -> Condition:
    """Return a condition that Conditions.java has written."""
    values = tuple(value) if operator == "in" else (value,)
    if column == "timestamp":
        values = tuple(map(_instant, values))
    return Condition(column, operator, values if operator == "in" else values[0], negated)


def _instant(microseconds: int | None) -> datetime | int | None:
    """Return a time since 1970 as datetime. One out of range stays a number, and does not limit the plan."""
    try:
        return microseconds if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return microseconds


def _main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    (length,) = _LENGTH.unpack(infile.read(_LENGTH.size))
    answer = json.dumps(manifest(json.loads(infile.read(length)))).encode()
    outfile.write(_LENGTH.pack(len(answer)) + answer)


def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    """Run the planner; Spark's daemon of Python workers calls it in a forked process."""
    worker_run(_main, infile, outfile)
