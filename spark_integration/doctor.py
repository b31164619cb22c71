"""Checks one by one what `format("mpbroker")` needs on this host, for `mpbroker doctor spark`."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spark_integration.check import NOTE, OK, PROBLEM, Check, State, failed
from spark_integration.environment import (
    SparkSetupError,
    check_java,
    check_spark,
    package_root,
    why_unfit,
    with_package,
)

_SHARED_MEMORY = Path("/dev/shm")
_INSTALL = "pip install 'mpbroker-server[spark]', or in a clone make setup-spark"
_BY_SESSION = "or make the session with mpbroker.spark.session(), which sets it"


def examine(log_dirs: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Check everything, in the order in which it is needed. Changes nothing and starts no Spark."""
    environ = os.environ if environ is None else environ
    yield java_check(environ)
    yield spark_check()
    yield _package("pyarrow", (18,), PROBLEM, "reading needs it")
    yield _package("pandas", (2, 2), NOTE, "PySpark's Arrow functions ask for it", below=(3,))
    yield _package("fastavro", (1, 10), NOTE, "from_avro needs it")
    yield _workers_here()
    yield _worker_python(environ)
    yield from _driver_python(environ)
    yield _source()
    yield _unix_sockets()
    yield _shared_memory()
    yield _jar()
    for name in log_dirs:
        yield _log_dir(name)


def java_check(environ: Mapping[str, str] | None = None) -> Check:
    """Check that there is a Java that Spark runs on."""
    try:
        java = check_java(os.environ if environ is None else environ)
    except SparkSetupError as error:
        return failed("Java", error)
    return Check("Java", OK, f"{java.major} ({java.path})")


def spark_check() -> Check:
    """Check that there is a PySpark that the source works with."""
    try:
        check_spark()
    except SparkSetupError as error:
        return failed("PySpark", error)
    return Check("PySpark", OK, version("pyspark"))


def _package(
    name: str, least: tuple[int, ...], otherwise: State, why: str, *, below: tuple[int, ...] = ()
) -> Check:
    wanted = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, otherwise, f"not installed; {why}", f"pip install '{name}{wanted}'")
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if numbers < least or (below and numbers >= below):
        return Check(name, PROBLEM, f"{found}, wanted is {wanted}", f"pip install '{name}{wanted}'")
    return Check(name, OK, found)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _workers_here() -> Check:
    """Check that this Python can run workers of `session()`, which do not see the current directory."""
    unfit = why_unfit(sys.executable, with_package(None))
    if unfit:
        return Check("workers", PROBLEM, f"with {sys.executable} {unfit}", _INSTALL)
    return Check("workers", OK, f"{sys.executable} imports mpbroker from {package_root()}")


def _worker_python(environ: Mapping[str, str]) -> Check:
    """Check the Python that a session gets without configuration."""
    name = "PYSPARK_PYTHON"
    chosen = environ.get(name)
    python = chosen or "python3"
    default = shutil.which(python, path=environ.get("PATH")) or "which does not exist"
    shown = chosen or f"not set: python3 of PATH, {default}"
    unfit = why_unfit(python, environ.get("PYTHONPATH"))
    if unfit is None:
        return Check(name, OK, shown)
    return Check(name, PROBLEM, f"{shown}; {unfit}", f"export {name}={sys.executable}, {_BY_SESSION}")


def _driver_python(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check PYSPARK_DRIVER_PYTHON: it overrides PYSPARK_PYTHON, and often is Jupyter's start script."""
    name = "PYSPARK_DRIVER_PYTHON"
    chosen = environ.get(name)
    if chosen is None:
        return
    unfit = why_unfit(chosen, environ.get("PYTHONPATH"))
    if unfit is None:
        yield Check(name, OK, chosen)
    else:
        advice = f"unset {name}: Spark plans queries with it; {_BY_SESSION}"
        yield Check(name, PROBLEM, f"{chosen}; {unfit}", advice)


def _source() -> Check:
    try:
        importlib.import_module("pyspark_mpbroker")
    except ImportError as error:
        return Check("data source", PROBLEM, f"pyspark_mpbroker cannot be imported: {error}", _INSTALL)
    return Check("data source", OK, 'format("mpbroker")')


def _unix_sockets() -> Check:
    """Check for Unix sockets where Java makes them: in its temporary directory, which may not be Python's."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="mpbroker-doctor-", dir="/tmp") as directory,
            socket.socket(socket.AF_UNIX) as one,
        ):
            one.bind(str(Path(directory) / "socket"))
    except (OSError, AttributeError) as error:
        return Check(
            "Unix sockets",
            NOTE,
            f"not in /tmp: {error}",
            "set spark.python.unix.domain.socket.enabled to false: TCP is a little slower",
        )
    return Check("Unix sockets", OK, "in /tmp")


def _shared_memory() -> Check:
    if not os.access(_SHARED_MEMORY, os.R_OK | os.X_OK):
        return Check(
            "shared memory",
            NOTE,
            f"{_SHARED_MEMORY} cannot be read",
            "files of a running broker are read through it; without it use kafka.bootstrap.servers",
        )
    return Check("shared memory", OK, str(_SHARED_MEMORY))


def _jar() -> Check:
    from spark_integration.jvm.jar import jar_path

    name = "JVM reader"
    path = jar_path()
    if path is None:
        advice = "where a JDK is, make dist builds a wheel with it, and in a clone make setup-spark builds it"
        return Check(name, NOTE, "not built; Python reads", advice)
    return Check(name, OK, f"{path}, which mpbroker.spark.session() adds, and others in spark.jars or --jars")


def _log_dir(name: str) -> Check:
    """Check whether this user can read the log directory, and whether a broker runs on it."""
    from mpbroker.reading.errors import OptionError, SourceUnavailable
    from mpbroker.reading.local_catalog import LocalCatalog
    from mpbroker.reading.log_dirs import running_broker

    title = "log.dir"
    try:
        catalog = LocalCatalog([name])
        topics = len(list(catalog.topics()))
        catalog.close()
        state = "at rest" if running_broker(Path(name)) is None else "in use by a broker"
    except (OptionError, SourceUnavailable) as error:
        return failed(title, error)
    except OSError as error:
        return Check(
            title,
            PROBLEM,
            f"{error.filename or name}: {error.strerror}",
            "run Spark as a member of the broker's group, or read with kafka.bootstrap.servers",
        )
    counted = f"{topics} topic" if topics == 1 else f"{topics} topics"
    return Check(title, OK, f"{name}: {counted}, {state}")
