"""Adds the jar with the JVM reader to Spark sessions: Spark finds `format("mpbroker")` in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mpbroker.protocol.printable import spelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH: Final = "spark.mpbroker.accelerated"
"""The session's setting that is false to leave all reads to Python. (Java: SourceTable.)"""

_JARS: Final = "spark.jars"
_PATH: Final = Path(__file__).with_name("mpbroker-spark.jar")
_LOG = logging.getLogger("mpbroker.spark")


def jar_path() -> Path | None:
    """Return the jar; None if this is a clone or an sdist that was set up without a JDK."""
    return _PATH if _PATH.is_file() else None


def with_jar(wanted: Mapping[str, str], *, accelerated: bool) -> dict[str, str]:
    """Return the settings of a JVM that is to be started: `wanted`, and the jar if `accelerated`.

    Logs a warning if the jar is missing: then Python reads, not the JVM.
    """
    jar = jar_path() if accelerated else None
    if accelerated and jar is None:
        _LOG.warning(
            "Python reads format('mpbroker'), not the JVM: %s is missing. A wheel has it; in a clone install "
            "a JDK (openjdk-17-jdk-headless) and run make setup-spark",
            _PATH,
        )
    settings = {**wanted, SWITCH: spelt(accelerated)}
    if jar is not None:
        others = [one for one in wanted.get(_JARS, "").split(",") if one and one != str(jar)]
        settings[_JARS] = ",".join([*others, str(jar)])
    return settings


def add_to_running(session: SparkSession) -> None:
    """Add the jar to a session whose JVM was started without it, as by notebooks and spark-submit."""
    jar = jar_path()
    context: Any = session.sparkContext._jsc.sc()
    # Maven's name of the jar begins with that of its group.
    if jar is not None and jar.stem not in context.listJars().mkString(","):
        session.sql(f'ADD JAR "{jar}"')
