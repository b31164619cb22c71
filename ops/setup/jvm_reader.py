"""Builds the jar of the JVM reader, the same bytes each time: python -m ops.setup.jvm_reader

Needs a JDK (javac 17 or newer) and the jars of the installed PySpark.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "spark_integration" / "jvm" / "java"
INTO = ROOT / "spark_integration" / "jvm"
JAVA_VERSION = 17
NAME = "mpbroker-spark.jar"
# Tells Spark the class of format("mpbroker").
SERVICES = Path("META-INF", "services")
# The earliest time that a zip file can say.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_READABLE_BY_ALL = 0o644 << 16


class NoCompiler(RuntimeError):
    """This machine has no javac, or none that is new enough."""


def javac() -> str:
    """Return the compiler of JAVA_HOME, else that of PATH. Raises NoCompiler."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin") if home else None
    found = found or shutil.which("javac")
    if found is None:
        raise NoCompiler("javac is missing: install openjdk-17-jdk-headless, or set JAVA_HOME to a JDK")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=True)
    version = (answer.stdout + answer.stderr).split()[-1]
    if int(version.split(".")[0]) < JAVA_VERSION:
        raise NoCompiler(f"{found} is version {version}; the JVM reader needs {JAVA_VERSION} or newer")
    return found


def spark_jars() -> Path:
    """Return the directory with the jars of the installed PySpark. Raises PackageNotFoundError."""
    return Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")))


def build(into: Path) -> Path:
    """Compile the sources and write the jar. Raises NoCompiler, PackageNotFoundError, CalledProcessError."""
    compiler = javac()
    jar = into / NAME
    with tempfile.TemporaryDirectory() as name:
        classes = Path(name)
        command = [
            # A compiler that lives for seconds is done before it has optimised itself.
            *(compiler, "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"),
            *("-nowarn", "-proc:none", "-g:source,lines", "-encoding", "UTF-8"),
            *("-source", str(JAVA_VERSION), "-target", str(JAVA_VERSION)),
            # Where a mapping's address comes from; Spark opens the package to all when it runs.
            *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
            *(
                "-XDignore.symbol.file",
                "-Xlint:-options",
                "-classpath",
                f"{spark_jars()}/*",
                "-d",
                str(classes),
            ),
            *(str(source) for source in sorted(SOURCES.rglob("*.java"))),
        ]
        subprocess.run(command, check=True)
        shutil.copytree(SOURCES / SERVICES, classes / SERVICES)
        for old in into.glob("mpbroker-spark-*.jar"):
            # Of a checkout before the name had no version.
            old.unlink()
        # Whole or not at all: a session may be loading the old one.
        written = Path(name) / "whole.jar"
        write_jar(written, classes)
        fresh = jar.with_suffix(".new")
        shutil.copyfile(written, fresh)
        fresh.replace(jar)
    return jar


def write_jar(jar: Path, classes: Path) -> None:
    """Pack the files below a directory, sorted, all with one time and mode."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _entries(jar, classes):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = _READABLE_BY_ALL
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)


def _entries(jar: Path, classes: Path) -> Iterator[tuple[str, bytes]]:
    yield "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\n\r\n"
    for path in sorted(classes.rglob("*")):
        if path.is_file() and path != jar:
            yield path.relative_to(classes).as_posix(), path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.setup.jvm_reader", description=__doc__)
    parser.add_argument("--into", type=Path, default=INTO, help="directory for the jar")
    try:
        print(f"setup: built {build(parser.parse_args().into)}", file=sys.stderr)
    except NoCompiler as error:
        print(f"setup: going on without the JVM reader of Spark sessions: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
