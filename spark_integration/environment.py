"""Finds what Spark needs on this host: Java, and a Python for its workers that can import this package.

Nothing here imports PySpark: `mpbroker doctor spark` uses this module also where PySpark is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

JAVA_MAJOR_MIN: Final = 17
SPARK_MIN: Final = (4, 1)
# The modules that a worker imports to plan and to read.
WORKER_MODULES: Final = ("pyarrow", "mpbroker", "pyspark", "spark_integration.source")
_ANSWERS_WITHIN_SECONDS = 60.0
_INSTALL_JAVA = (
    f"Install a Java runtime {JAVA_MAJOR_MIN} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17), "
    "or name another one in JAVA_HOME"
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Prints which of the modules in its arguments cannot be imported, and why.
_PROBE = """
import importlib, json, sys
missing = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing[name] = f"{type(error).__name__}: {error}"
print(json.dumps({"version": list(sys.version_info[:2]), "missing": missing}))
"""


class SparkSetupError(RuntimeError):
    """A requirement is missing on this host or in a running session; the text names the remedy."""


class Java(NamedTuple):
    """The Java that Spark's start script runs, and its version: 8, 11, 17 …"""

    path: str
    major: int


class WorkerPython(NamedTuple):
    """The version of a Python, such as (3, 11), and the modules that it cannot import, with reasons."""

    version: tuple[int, int]
    missing: Mapping[str, str]


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find the `java` that Spark's own script starts: in JAVA_HOME, else on PATH. Raises SparkSetupError."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        path = str(Path(home) / "bin" / "java")
        if not os.access(path, os.X_OK):
            raise SparkSetupError(f"JAVA_HOME is {home}, but {path} is not a program. {_INSTALL_JAVA}")
    else:
        found = shutil.which("java", path=environ.get("PATH"))
        if found is None:
            raise SparkSetupError(f"Spark needs Java; PATH has none. {_INSTALL_JAVA}")
        path = found
    return Java(path, _java_major(path))


def check_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will start, if it is new enough. Raises SparkSetupError."""
    java = find_java(environ)
    if java.major < JAVA_MAJOR_MIN:
        raise SparkSetupError(f"Spark 4 does not run on Java {java.major} ({java.path}). {_INSTALL_JAVA}")
    return java


def _java_major(path: str) -> int:
    try:
        # Java prints its version on standard error.
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_ANSWERS_WITHIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkSetupError(f"{path} -version does not work: {error}. {_INSTALL_JAVA}") from error
    printed = done.stderr + done.stdout
    found = _VERSION.search(printed)
    if found is None:
        first = (printed.strip().splitlines() or ["nothing"])[0]
        raise SparkSetupError(f"{path} -version prints no version but: {first}. {_INSTALL_JAVA}")
    # Up to Java 8 the first number was 1.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def package_root() -> Path:
    """Return the directory that `import mpbroker` comes from: site-packages, or a clone."""
    return Path(__file__).resolve().parents[1]


def check_spark() -> None:
    """Check that there is a PySpark that the source works with. Raises SparkSetupError."""
    if find_spec("pyspark") is None:
        raise SparkSetupError(
            f"PySpark is not installed in {sys.executable}. "
            "Install the extra: pip install 'mpbroker-server[spark]', or in a clone make setup-spark"
        )
    from pyspark.version import __version__

    major, minor = __version__.split(".")[:2]
    if (int(major), int(minor)) < SPARK_MIN:
        raise SparkSetupError(
            f"PySpark {major}.{minor} is too old: the source needs {SPARK_MIN[0]}.{SPARK_MIN[1]} or newer. "
            "Run pip install --upgrade 'mpbroker-server[spark]'"
        )


def check_packages() -> None:
    """Check that there is a PySpark that the source works with, and PyArrow. Raises SparkSetupError."""
    check_spark()
    if find_spec("pyarrow") is None:
        raise SparkSetupError(
            f"PyArrow is not installed in {sys.executable}, and the source reads with it. "
            "Install the extra: pip install 'mpbroker-server[spark]'"
        )


def with_package(python_path: str | None) -> str:
    """Return a PYTHONPATH with this package's directory added, or unchanged if pip installed the package."""
    root = str(package_root())
    parts = [part for part in (python_path or "").split(os.pathsep) if part]
    is_installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return os.pathsep.join(parts if is_installed or root in parts else [root, *parts])


def ask_python(python: str, python_path: str | None = None) -> WorkerPython:
    """Ask a Python which of the workers' modules it can import with this PYTHONPATH.

    Spark's own Python modules are added to the PYTHONPATH, as Spark does for workers. Raises SparkSetupError.
    """
    program = shutil.which(python)
    if program is None:
        raise SparkSetupError(f"program {python} does not exist")
    # Workers cannot reach modules in the user's current directory.
    program = str(Path(program).absolute())
    paths = [part for part in (python_path, _spark_on_path()) if part]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [program, "-c", _PROBE, *WORKER_MODULES],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN_SECONDS,
            env=environ,
            cwd="/",
            check=False,
        )
        # Modules may print while they are imported.
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        major, minor = answer["version"]
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError) as error:
        raise SparkSetupError(f"{python} does not work as a Python: {error}") from error
    return WorkerPython((major, minor), answer["missing"])


def _spark_on_path() -> str:
    """Return the archives that Spark puts on the path of every worker."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return ""
    archives = (Path(spec.origin).parent / "python" / "lib").glob("*.zip")
    return os.pathsep.join(str(path) for path in sorted(archives))


def why_unfit(python: str, python_path: str | None = None) -> str | None:
    """Return why this Python cannot run workers of a driver like this one; None if it can."""
    try:
        answer = ask_python(python, python_path)
    except SparkSetupError as error:
        return str(error)
    if answer.version != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, one)) for one in (answer.version, sys.version_info[:2]))
        return f"it is Python {theirs}, the driver is {ours}: Spark wants the same for both"
    if answer.missing:
        name, reason = next(iter(answer.missing.items()))
        return f"it cannot import {name} ({reason})"
    return None
