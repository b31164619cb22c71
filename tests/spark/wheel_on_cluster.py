"""The steps of docs/SPARK.md for a cluster whose hosts have Spark and no mpbroker: the wheel, in a packed
environment, sent along with the job. `make test-all` runs this; the archive has some 130 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

from ops.bench.brokers import HOST, Mpbroker
from tests.spark.test_cluster import RECORDS, TOPIC
from tests.spark.test_cluster import broker as broker
from tests.support.distributions import build_sdist, build_wheel, make_environment
from tests.support.packed_environment import BESIDE, pack
from tests.support.spark_cluster import EXECUTOR_MEMORY, SPARK_HOME, running_cluster

JOB = f"""
import json, sys
from pyspark.sql import SparkSession

log_dir, bootstrap = sys.argv[1:]

def seen(batches):
    import mpbroker, pyarrow as pa
    for batch in batches:
        where = pa.repeat(mpbroker.__file__, batch.num_rows)
        yield pa.RecordBatch.from_arrays([batch.column("key"), where], ["key", "module"])

spark = SparkSession.builder.getOrCreate()
reader = spark.read.format("mpbroker").option("subscribe", "{TOPIC}").option("columns", "key")
places = {{"log.dir": log_dir, "kafka.bootstrap.servers": bootstrap}}
rows = reader.options(**places).load().mapInArrow(seen, "key binary, module string").collect()
modules = sorted({{row.module for row in rows}})
print(json.dumps({{"keys": sorted(int(row.key) for row in rows), "modules": modules}}))
"""


def test_the_wheel_reaches_executors_with_the_job(broker: Mpbroker, tmp_path: Path) -> None:
    wheel = build_wheel(build_sdist(tmp_path / "sdist"), tmp_path / "wheel")
    environment = make_environment(tmp_path, wheel, BESIDE)
    archive = tmp_path / "env.tar.gz"
    pack(environment, archive)
    submit = tmp_path / "submit"
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        packed.extractall(submit / "env")
    job = tmp_path / "job.py"
    job.write_text(JOB)
    with running_cluster(tmp_path / "cluster", [[], []]) as cluster:
        settings = {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
        command += ["--archives", f"../{archive.name}#env"]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        done = subprocess.run(
            [*command, str(job), str(broker.log_dir), broker.bootstrap],
            cwd=submit,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["keys"] == list(range(RECORDS))
    work = str(tmp_path / "cluster")
    assert all(module.startswith(work) for module in found["modules"]), found["modules"]


def _environment() -> dict[str, str]:
    """Nothing of this checkout. Not the setting spark.pyspark.python: what plans on the driver ignores it."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))
    }
    mine = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": "./env/bin/python"}
    return inherited | mine
