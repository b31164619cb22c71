"""What the names of Spark's files say agrees with the sessions that they take."""

from __future__ import annotations

from pathlib import Path

from tests.support import kinds

SPARK = Path(__file__).parents[1] / kinds.SPARK_FOLDER


def test_files_beside_the_connector_are_those_that_take_its_session() -> None:
    """Elsewhere each of them would start a JVM of its own."""
    takes = "def spark(beside_the_connector:"
    found = [path.name for path in sorted(SPARK.rglob("test_*.py")) if takes in path.read_text()]
    assert tuple(found) == kinds.BESIDE_THE_CONNECTOR
