"""An archive of Apache Kafka's classes, which JVMs of tests map instead of reading jars (JEP 350).

A broker starts in two thirds of the time with it. `python -m tests.support.class_archive` makes it in
`build/`; where `make test` has not done so, the first test that needs a JVM does.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.brokers import Kafka, run_tool
from ops.setup import maven

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "build" / "kafka" / "classes.jsa"
# Without the file, or with that of another JVM or of other jars, a JVM goes on without it. What it says of
# that would stand among the output of Kafka's tools.
FLAGS = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable")


@dataclass
class Recorded(Kafka):
    """A broker that leaves an archive of the classes it has loaded when it ends."""

    jvm: Sequence[str] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
    # The JVM of the tests' tools waits for the archive.
    run_tool = staticmethod(run_tool)

    def command(self) -> Sequence[str]:
        java, *rest = super().command()
        return [java, f"-XX:ArchiveClassesAtExit={self.archive}", *rest]

    @property
    def archive(self) -> Path:
        return self.directory / "classes.jsa"


def make_archive() -> None:
    """Make the archive if there is none for these jars and this JVM; once for all that run side by side."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with open(ARCHIVE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_fresh():
            _record()


def _is_fresh() -> bool:
    changed = max(maven.LIBS.stat().st_mtime, Path(maven.java()).stat().st_ctime)
    return ARCHIVE.exists() and ARCHIVE.stat().st_mtime > changed


def _record() -> None:
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as directory:
        broker = Recorded(Path(directory))
        try:
            broker.start()
            broker.stop()
        finally:
            broker.kill()
        broker.archive.rename(ARCHIVE)


if __name__ == "__main__":
    _record()
