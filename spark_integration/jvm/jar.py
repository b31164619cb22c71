"""Finds the jar of the JVM reader, and adds it to the settings of a session."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from spark_integration.environment import SparkSetupError

EXTENSION: Final = "io.mpbroker.spark.Acceleration"
"""`spark.sql.extensions` has to name this if the jar is in `spark.jars`."""

JARS: Final = "spark.jars"
EXTENSIONS: Final = "spark.sql.extensions"

_DIRECTORY = Path(__file__).parent
_NAME = "mpbroker-spark-{}.jar"
_LOG = logging.getLogger("mpbroker.spark")


def jar_path(spark_version: str | None = None) -> Path | None:
    """Return the jar for this version of Spark, by default the installed PySpark's; None if there is none.

    The jar uses parts of Spark that change between versions. Raises SparkSetupError if there is only one for
    another version.
    """
    wanted = spark_version or version("pyspark")
    path = _DIRECTORY / _NAME.format(wanted)
    if path.is_file():
        return path
    others = sorted(one.stem.removeprefix("mpbroker-spark-") for one in _DIRECTORY.glob(_NAME.format("*")))
    if not others:
        return None
    raise SparkSetupError(
        f"this installation has no JVM reader for Spark {wanted}, only for {', '.join(others)}. "
        f"Install pyspark=={others[-1]}, build the jar again with make setup-spark in a checkout, or leave "
        "accelerated away: the Python reader gives the same records"
    )


def with_jvm_reader(wanted: Mapping[str, str], running: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings of a session with those added that give it the JVM reader.

    `running` has the settings of a context that runs already, too late for a jar. Without a jar Python reads,
    with a warning. Raises SparkSetupError.
    """
    jar = jar_path()
    if jar is None:
        _LOG.warning(
            "accelerated=True: this installation has no JVM reader, Python reads instead. A wheel has it if "
            "make dist built it on a machine with a JDK (openjdk-17-jdk-headless)"
        )
        return dict(wanted)
    if running is not None and not (_has(running, JARS, str(jar)) and _has(running, EXTENSIONS, EXTENSION)):
        raise SparkSetupError(
            f"the Spark session that runs already was started without {jar}. "
            "Stop it (spark.stop()) and ask for the accelerated one again"
        )
    return {**wanted, JARS: _with(wanted, JARS, str(jar)), EXTENSIONS: _with(wanted, EXTENSIONS, EXTENSION)}


def _has(settings: Mapping[str, str], name: str, one: str) -> bool:
    return one in settings.get(name, "").split(",")


def _with(settings: Mapping[str, str], name: str, one: str) -> str:
    return ",".join([*(each for each in settings.get(name, "").split(",") if each and each != one), one])
