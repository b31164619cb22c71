"""Adds the jar with the JVM reader to Spark sessions: Spark finds `format("mpbroker")` in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH: Final = "spark.mpbroker.accelerated"
"""The session's setting that, if false, leaves all reads to Python. (Java: SourceTable.)"""

_SOURCE: Final = "io.mpbroker.spark.Source"
_PATH: Final = Path(__file__).with_name("mpbroker-spark.jar")
_LOG = logging.getLogger("mpbroker.spark")


def jar_path() -> Path | None:
    """Return the jar; None if this is a clone or an sdist that was set up without a JDK or Maven."""
    return _PATH if _PATH.is_file() else None


def add_to(session: SparkSession) -> None:
    """Add the jar to the driver's class path; reads send it to executors. Logs a warning if it is missing.

    The setting spark.jars would replace the jars that Spark's configuration names, and ADD JAR reaches only
    the thread that runs it. So the jar goes into the class loader of spark-submit, which all threads inherit.
    """
    jar = jar_path()
    if jar is None:
        _LOG.warning(
            "Python reads format('mpbroker'), not the JVM: %s is missing. A wheel has it; in a clone install "
            "a JDK and Maven (openjdk-17-jdk-headless, maven) and run make setup-spark",
            _PATH,
        )
        return
    jvm: Any = session._jvm
    inner = session._jsparkSession.sharedState().jarClassLoader()
    if not _has_source(jvm, inner):
        outer = inner.getParent()
        # In a JVM that spark-submit did not start, only the loader of this session has the method.
        target = outer if hasattr(outer, "addURL") else inner
        target.addURL(jvm.java.io.File(str(jar)).toURI().toURL())


def _has_source(jvm: Any, loader: Any) -> bool:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        jvm.java.lang.Class.forName(_SOURCE, False, loader)
    except Py4JJavaError:
        return False
    return True
