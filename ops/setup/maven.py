"""Jars of Maven Central: those that a pom.xml names, and Apache Kafka's in `ops/bench/kafka/libs`.

`ops/bench/kafka/pom.xml` has the versions of the latter. Once the directory exists, Maven runs again only if
pom.xml is newer than the directory.
"""

import os
import shutil
import subprocess
from pathlib import Path

POM = Path(__file__).parents[1] / "bench" / "kafka" / "pom.xml"
LIBS = POM.parent / "libs"

MAVEN_TIMEOUT_S = 600


class MissingToolError(Exception):
    """A program has to be installed first; the message names it and says how."""


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise MissingToolError("Apache Kafka needs Java 17 or newer: apt-get install openjdk-17-jre-headless")
    return found


def copy_dependencies(pom: Path, target: Path) -> None:
    """Fetch the jars that a pom.xml names into a directory. Raises MissingToolError."""
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError("Jars come from Maven: apt-get install maven")
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={target}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    if done.returncode:
        printed = (done.stdout + done.stderr).strip()[-2000:]
        raise MissingToolError(f"Maven could not fetch the jars of {pom} (is the network there?):\n{printed}")


def kafka_classpath() -> str:
    """Return the class path with Kafka's broker and tools; the first call fetches the jars."""
    if not LIBS.is_dir() or LIBS.stat().st_mtime < POM.stat().st_mtime:
        fresh = LIBS.with_name(f"libs.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        copy_dependencies(POM, fresh)
        shutil.rmtree(LIBS, ignore_errors=True)
        fresh.rename(LIBS)
        os.utime(LIBS)
    return f"{LIBS}/*"
