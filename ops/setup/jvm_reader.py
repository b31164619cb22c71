"""Builds the jar of the JVM reader, the same bytes each time: python -m ops.setup.jvm_reader

Needs a JDK (javac 17 or newer) and the jars of the installed PySpark. The reader fetches from brokers with
Kafka's own client. The jar contains the client's classes, renamed, because a program may use another version
of the client at the same time, as Spark's connector does. Maven downloads the client once.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ops.setup import maven

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "spark_integration" / "jvm" / "java"
INTO = ROOT / "spark_integration" / "jvm"
JAVA_VERSION = 17
NAME = "mpbroker-spark.jar"
# A program that lives for seconds is done before it has optimised itself.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# The sources that use Kafka's client.
FETCH = Path("io", "mpbroker", "spark", "fetch")
LIBRARIES = ROOT / "build" / "kafka-client"
POM = Path(__file__).with_name("kafka_client_pom.xml")
KAFKA: Final = "kafka-clients-4.3.0.jar"
CHECKSUMS: Final = {
    KAFKA: "97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1",
    "asm-9.10.1.jar": "ed825d10ab1399c8c0cb669e688cf0c8c82629b4c8399b58352b68e92ca10fcb",
    "asm-commons-9.10.1.jar": "6d0abefb7cbf972ea16edb37ec14835372505063a45f976ab7ea889ed9497895",
    "asm-tree-9.10.1.jar": "3dfb0d5b6a106cd40b5b250e39935fbf2f927f4477546a5369a3ac609cf0506b",
    "jarjar-1.18.1.jar": "b28a8a2a507315224456c3746daa932b8f7a16e72287f89d84b1dc0f81604e89",
}
# Renames Kafka's classes, and texts that name one. Names of system properties, such as
# org.apache.kafka.disallowed.login.modules, stay. Keeps what settings may name, and what kept classes use.
RULES: Final = f"""\
rule org.apache.kafka.clients.** io.mpbroker.spark.shaded.@0
rule org.apache.kafka.common.** io.mpbroker.spark.shaded.@0
rule org.apache.kafka.server.** io.mpbroker.spark.shaded.@0
keep {FETCH.as_posix().replace("/", ".")}.**
keep org.apache.kafka.common.security.**
"""
# Of telemetry, which no client here sends.
LEFT_OUT: Final = "org/apache/kafka/shaded/"
# Tells Spark the class of format("mpbroker").
SERVICES = Path("META-INF", "services")
# The earliest time that a zip file can say.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_READABLE_BY_ALL = 0o644 << 16


class CannotBuild(RuntimeError):
    """This machine lacks a javac that is new enough, or Kafka's client, which Maven brings."""


def javac() -> str:
    """Return the compiler in JAVA_HOME, else the one on PATH. Raises CannotBuild."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin") if home else None
    found = found or shutil.which("javac")
    if found is None:
        raise CannotBuild("javac is missing: install openjdk-17-jdk-headless, or set JAVA_HOME to a JDK")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=True)
    version = (answer.stdout + answer.stderr).split()[-1]
    if int(version.split(".")[0]) < JAVA_VERSION:
        raise CannotBuild(f"{found} is version {version}; the JVM reader needs {JAVA_VERSION} or newer")
    return found


def spark_jars() -> Path:
    """Return the directory with the jars of the installed PySpark. Raises PackageNotFoundError."""
    return Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")))


def libraries() -> Path:
    """Return the directory with the jars of CHECKSUMS; the first call fetches them. Raises CannotBuild."""
    LIBRARIES.parent.mkdir(exist_ok=True)
    if not LIBRARIES.is_dir():
        fresh = LIBRARIES.with_name(f"kafka-client.{os.getpid()}")
        try:
            maven.copy_dependencies(POM, fresh)
        except (maven.MissingToolError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise CannotBuild(str(error)) from error
        fresh.replace(LIBRARIES)
    for name, expected in CHECKSUMS.items():
        path = LIBRARIES / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise CannotBuild(f"{path} is not the file that this version wants: remove {LIBRARIES}")
    return LIBRARIES


def build(into: Path) -> Path:
    """Compile the sources and write the jar. Raises CannotBuild, PackageNotFoundError, CalledProcessError."""
    compiler, kafka = javac(), libraries()
    jar = into / NAME
    with tempfile.TemporaryDirectory() as name:
        classes = Path(name, "classes")
        command = [
            *(compiler, *(f"-J{flag}" for flag in SHORT_LIVED)),
            *("-nowarn", "-proc:none", "-g:source,lines", "-encoding", "UTF-8"),
            *("-source", str(JAVA_VERSION), "-target", str(JAVA_VERSION)),
            # Where a mapping's address comes from; Spark opens the package to all when it runs.
            *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
            *("-XDignore.symbol.file", "-Xlint:-options", "-d", str(classes)),
            *("-classpath", f"{spark_jars()}/*:{kafka / KAFKA}"),
            *map(str, sorted(SOURCES.rglob("*.java"))),
        ]
        subprocess.run(command, check=True)
        add_kafka(classes, kafka)
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


def add_kafka(classes: Path, kafka: Path) -> None:
    """Add the classes of Kafka's client, renamed, and use the new names in the reader's classes."""
    mixed, renamed = classes.with_name("mixed.jar"), classes.with_name("renamed.jar")
    with zipfile.ZipFile(mixed, "w") as jar, zipfile.ZipFile(kafka / KAFKA) as archive:
        for entry in archive.namelist():
            if entry.endswith(".class") and not entry.startswith(LEFT_OUT):
                jar.writestr(entry, archive.read(entry))
        for path in (classes / FETCH).iterdir():
            jar.write(path, FETCH / path.name)
        licences = {name: archive.read(name) for name in ("LICENSE", "NOTICE")}
    rules = classes.with_name("rules.txt")
    rules.write_text(RULES)
    paths = ":".join(str(kafka / name) for name in CHECKSUMS if name != KAFKA)
    command = ["-cp", paths, "com.eed3si9n.jarjar.Main", "process", str(rules), str(mixed), str(renamed)]
    subprocess.run([maven.java(), *SHORT_LIVED, *command], check=True)
    shutil.rmtree(classes / FETCH)
    with zipfile.ZipFile(renamed) as archive:
        archive.extractall(classes, [entry for entry in archive.namelist() if entry.endswith(".class")])
    for name, text in licences.items():
        place = classes / "META-INF" / KAFKA.removesuffix(".jar") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)


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
    except CannotBuild as error:
        print(f"setup: going on without the JVM reader of Spark sessions: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
