"""Through Spark Connect: the client has no JVM, the server plans, reads and runs the stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.polling import PATIENCE_S
from tests.support.spark_cluster import ROOT
from tests.support.spark_logs import PartitionWriter, checkpoint, fill


def test_a_batch_and_a_stream_through_connect(log_dir: Path, tmp_path: Path) -> None:
    topic_id = (1).to_bytes(16, "big")
    writers = [PartitionWriter(log_dir, "orders", partition, topic_id=topic_id) for partition in range(2)]
    for writer in writers:
        fill(writer, batches=5)
    checkpoint(log_dir, {("orders", number): writer.next_offset for number, writer in enumerate(writers)})
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", str(log_dir), "orders", str(tmp_path)],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=6 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect")
    assert found["count"] == found["streamed"] == 100
    assert len(found["of_partition_1"]) == 50
