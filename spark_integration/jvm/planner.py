"""Plans a query for the JVM reader, in a Python worker of Spark's, as Spark runs its own planners.

It reads a request and writes a manifest; both are JSON with their length in front. The plan is that of the
Python source. (Spark: PythonPlannerRunner, pyspark/sql/worker/plan_data_source_read.py.)
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any

from pyspark.sql.types import StructType
from pyspark.sql.worker.utils import worker_run

from mpbroker.reading.manifest import manifest_of
from mpbroker.reading.options import parse_options
from spark_integration.schema import DECODES, value_format
from spark_integration.source import MpbrokerDataSource, SparkTask

_LENGTH = struct.Struct(">i")


def manifest(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request {options, schema} with the plan as JSON.

    The answer is {"declined": why} if only Python can read the query. Raises what the Python source raises.
    """
    options = parse_options(request["options"])
    if options.filter_pushdown:
        return {"declined": "filterPushdown is set, and Python plans by the query's conditions"}
    if value_format(request["options"]) is not None:
        return {"declined": DECODES}
    schema = StructType.fromJson(json.loads(request["schema"]))
    reader = MpbrokerDataSource(request["options"]).reader(schema)
    return manifest_of([task.range for task in reader.partitions() if isinstance(task, SparkTask)], options)


def _main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    (length,) = _LENGTH.unpack(infile.read(_LENGTH.size))
    answer = json.dumps(manifest(json.loads(infile.read(length)))).encode()
    outfile.write(_LENGTH.pack(len(answer)) + answer)


def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    """Run the planner; Spark's daemon of Python workers calls it in a forked process."""
    worker_run(_main, infile, outfile)
