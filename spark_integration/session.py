"""Makes Spark sessions in which `format("mpbroker")` works: checks Java, gives workers this package.

Spark starts workers with the Python that PYSPARK_PYTHON names, by default `python3` of PATH. If that Python
is missing, or lacks this package, a query fails with DATA_SOURCE_NOT_FOUND. Spark gives no reason, and our
code does not run, so it cannot report one. (Spark: PythonUtils.defaultPythonExec, DataSourceManager.)
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mpbroker.protocol.printable import spelt
from spark_integration.environment import SparkSetupError, check_java, check_packages, why_unfit, with_package
from spark_integration.jvm.jar import SWITCH, add_to, jar_path
from spark_integration.quiet import started_quietly

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOG = logging.getLogger("mpbroker.spark")

# Between Python and the JVM a Unix socket is up to a fifth faster than TCP. New workers for every query cost
# more than a second; keeping them is Spark's default, which an administrator may have changed.
_FASTER: Final = {"spark.python.unix.domain.socket.enabled": "true", "spark.python.worker.reuse": "true"}
# Settings of a session for which the user gave none.
_DEFAULTS: Final = {"spark.python.unix.domain.socket.enabled": "false", "spark.python.worker.reuse": "true"}
# Arrow's Java library checks each access to a vector, a tenth of what Spark does with our batches; Spark
# never reads outside a vector anyway. A value that the user has set stays.
_ARROW_UNCHECKED: Final = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_WORKER_PYTHON: Final = "spark.pyspark.python"
_DRIVER_PYTHON: Final = "spark.pyspark.driver.python"
_WORKER_PATH: Final = "spark.executorEnv.PYTHONPATH"
# Of clusters for which Spark obtains delegation tokens. (Java: Cautions.)
_CLUSTERS: Final = "spark.kafka.clusters."
_DAEMON: Final = "spark.python.daemon.module"
# Spark puts options of its own, or a scheme, in front of the user's value.
_PREFIXED: Final = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.sql.warehouse.dir",
)


def session(
    app_name: str = "mpbroker",
    master: str | None = None,
    *,
    accelerated: bool = True,
    config: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return a Spark session that knows `format("mpbroker")`: a new one, or the one that runs already.

    `master` is Spark's master, such as `local[4]`; by default spark-submit or Spark's configuration names it.
    `config` has any settings of Spark; they override the settings that this function makes. Batch queries
    read in the JVM, or without `accelerated` in Python, which is slower. `quiet` switches off Spark's web
    pages, its progress bar and log lines below errors (under spark-submit, only lines after this call).

    A session that runs already keeps its settings; a warning names the settings that differ from the wanted
    ones. If its workers run on this host with a Python that cannot run the source, new queries use the Python
    of this process. Raises SparkSetupError.
    """
    # Before PySpark is imported, which may be missing.
    check_packages()
    from pyspark.sql import SparkSession

    wanted = {name: spelt(value) for name, value in (config or {}).items()}
    if master is not None:
        wanted["spark.master"] = master
    wanted = _prepared(wanted, quiet=quiet)
    ran_before = _running_context() is not None
    builder = SparkSession.builder.appName(app_name)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    starts_jvm = not (_jvm_runs() or wanted.get("spark.remote") or os.environ.get("SPARK_REMOTE"))
    with started_quietly({"spark.app.name": app_name, **wanted}) if quiet and starts_jvm else nullcontext():
        found = builder.getOrCreate()
        if isinstance(found, SparkSession):
            if ran_before:
                _warn_of_kept(found, wanted)
            else:
                atexit.register(_remove_socket, found.sparkContext)
            if quiet:
                found.sparkContext.setLogLevel("ERROR")
            _end_workers_in_silence(found.sparkContext)
            if accelerated:
                add_to(found)
            if not accelerated or jar_path() is None:
                _warn_of_tokens(found.sparkContext)
            found.conf.set(SWITCH, wanted.get(SWITCH, spelt(accelerated)))
    if not isinstance(found, SparkSession) or not _finds_source():
        from spark_integration.source import MpbrokerDataSource

        found.dataSource.register(MpbrokerDataSource)
    return found


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add to a builder the settings of `session` that it was not given. Call it before `getOrCreate`.

    Python reads unless spark.jars names the jar of the JVM reader. Raises SparkSetupError, also if
    Spark's JVM runs already with a Python that cannot run the source.
    """
    check_packages()
    # PySpark has no public way to read the settings of a builder.
    given = {str(name): spelt(value) for name, value in vars(builder).get("_options", {}).items()}
    _check_running_jvm()
    for name, value in _prepared(given, quiet=False).items():
        builder = builder.config(name, value)
    return builder


def _prepared(given: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """Return the settings of a session: this package's, overridden by `given`.

    Also set environment variables for Spark, and let a running context import this package. Raises
    SparkSetupError.
    """
    if _has_a_server(given):
        # The server decides about jars and workers, and the settings that they depend on.
        return dict(given)
    unchecked = {}
    if not _jvm_runs():
        # The JVM of this host inherits it; executors elsewhere get it as a setting.
        value = os.environ.setdefault(_ARROW_UNCHECKED, "true")
        unchecked = {f"spark.executorEnv.{_ARROW_UNCHECKED}": value}
    wanted = {**_FASTER, **unchecked, **(_QUIET if quiet else {}), **given}
    if path := with_package(wanted.get(_WORKER_PATH)):
        wanted[_WORKER_PATH] = path
    context = _running_context()
    if context is not None:
        _adopt(context)
        return wanted
    if not _jvm_runs():
        check_java()
    python = _python_for_workers(wanted)
    wanted[_WORKER_PYTHON] = os.environ["PYSPARK_PYTHON"] = python
    # This Python plans queries; in notebooks the variable may name Jupyter's start script.
    wanted[_DRIVER_PYTHON] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    if path := with_package(os.environ.get("PYTHONPATH")):
        os.environ["PYTHONPATH"] = path
    return wanted


def _python_for_workers(wanted: Mapping[str, str]) -> str:
    """Return the path of the Python that the user chose, by default of this process's Python.

    If all workers are on this host and PYSPARK_PYTHON cannot run the source, return this process's Python.
    Spark uses the same path on the driver and on executors, so the chosen Python has to work here, too.
    Raises SparkSetupError.
    """
    in_config = wanted.get(_WORKER_PYTHON)
    chosen = in_config or os.environ.get("PYSPARK_PYTHON")
    if chosen is None or chosen == sys.executable:
        return sys.executable
    unfit = why_unfit(chosen, with_package(os.environ.get("PYTHONPATH")))
    if unfit is None:
        return chosen
    name = _WORKER_PYTHON if in_config else "PYSPARK_PYTHON"
    if in_config or not _is_local(wanted.get("spark.master")):
        raise SparkSetupError(
            f"{name} is {chosen}, but {unfit}. Name a Python that has mpbroker-server[spark] under the "
            "same path on the driver and on every executor (of an archive: unpack it into the driver's "
            "directory, too)"
        )
    _LOG.warning("%s is %s, but %s; workers run %s instead", name, chosen, unfit, sys.executable)
    return sys.executable


def _adopt(context: SparkContext) -> None:
    """Let workers of a running context import this package.

    If the context's Python cannot run the source, replace it by this process's Python. If workers are on
    other hosts, which may lack that Python, raise SparkSetupError instead.
    """
    path = with_package(context.environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH"))
    if path:
        context.environment["PYTHONPATH"] = path
    python = context.pythonExec
    if python == sys.executable:
        return
    unfit = why_unfit(python, path)
    if unfit is None:
        return
    if not _is_local(context.master):
        raise SparkSetupError(
            f"the Spark session that runs already has the Python {python}, but {unfit}. "
            "Stop it (spark.stop()) and ask for another"
        )
    _LOG.warning(
        "the Spark session that runs already has the Python %s, but %s; its new queries run %s",
        python,
        unfit,
        sys.executable,
    )
    context.pythonExec = sys.executable


def _end_workers_in_silence(context: SparkContext) -> None:
    """Have the JVM of a local master start Python workers by this package's daemon.

    The JVM reads the setting whenever it needs a daemon. Executors of a cluster keep PySpark's daemon: they
    may start one before a package that is sent with the job has arrived.
    """
    if _is_local(context.master):
        # `_conf` wraps the configuration that the JVM uses, not a copy.
        context._conf.set(_DAEMON, "pyspark_mpbroker.daemon")


def _remove_socket(context: SparkContext) -> None:
    """Remove the Unix socket of PySpark's accumulators, which stays if a program ends without `stop`."""
    address = getattr(context._accumulatorServer, "server_address", None)
    if isinstance(address, str):
        Path(address).unlink(missing_ok=True)


def _warn_of_tokens(context: SparkContext) -> None:
    """Warn if Spark obtains delegation tokens: only the JVM reader refuses queries that rely on them."""
    if any(name.startswith(_CLUSTERS) for name, _ in context.getConf().getAll()):
        _LOG.warning(
            "%s* sets up delegation tokens, which format('mpbroker') does not use: give each query its "
            "login, kafka.security.protocol, kafka.sasl.mechanism and kafka.sasl.jaas.config",
            _CLUSTERS,
        )


def _warn_of_kept(found: SparkSession, wanted: Mapping[str, str]) -> None:
    """Warn of each wanted setting that the session lacks, since it was running already and keeps its own."""
    core = found.sparkContext.getConf()
    kept = []
    for name, value in wanted.items():
        if name in (_WORKER_PYTHON, _DRIVER_PYTHON, _WORKER_PATH) or not name.startswith("spark."):
            continue
        default = _DEFAULTS.get(name)
        now = found.conf.get(name, default) if name.startswith("spark.sql.") else core.get(name, default)
        is_prefixed = name in _PREFIXED and now is not None and now.endswith(value)
        if now != value and not is_prefixed:
            kept.append(f"{name} is {'not set' if now is None else now}, not {value}")
    if kept:
        _LOG.warning(
            "a Spark session ran already and keeps its settings: %s. To have others, call spark.stop() first",
            "; ".join(kept),
        )


def _check_running_jvm() -> None:
    """If Spark's JVM runs already, check that its Python can run the source. Raises SparkSetupError."""
    if not _jvm_runs():
        return
    python, path = _jvm_python()
    unfit = None if python == sys.executable else why_unfit(python, path)
    if unfit is not None:
        raise SparkSetupError(
            f"Spark's JVM was started already, with the Python {python}, but {unfit}. "
            "Use mpbroker.spark.session(), or restart this program with PYSPARK_PYTHON set"
        )


def _finds_source() -> bool:
    """Return whether the JVM finds the source by itself. Spark would warn if it were registered as well."""
    python, path = _jvm_python()
    return python == sys.executable and with_package(path) == path


def _jvm_python() -> tuple[str, str]:
    """Return the default Python and the PYTHONPATH in the environment that the running JVM started with."""
    environ = _jvm().java.lang.System
    python = environ.getenv("PYSPARK_DRIVER_PYTHON") or environ.getenv("PYSPARK_PYTHON") or "python3"
    return python, environ.getenv("PYTHONPATH") or ""


def _jvm() -> Any:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _running_context() -> SparkContext | None:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _jvm_runs() -> bool:
    """Return whether Spark's JVM runs already, started by this process or by spark-submit."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _has_a_server(given: Mapping[str, str]) -> bool:
    """Return whether `given` or SPARK_REMOTE names a Spark Connect server for the session to connect to."""
    remote = given.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    return remote.startswith("sc://")


def _is_local(master: str | None) -> bool:
    """Return whether workers are on this host, with the files and programs that this process sees."""
    master = master or os.environ.get("MASTER") or "local"
    return master.startswith("local")
