"""A standalone Spark cluster on this host, from the jars that PySpark brings: a master, and workers that may
see other files than the rest of the host does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from ops.bench.brokers import HOST, free_port
from tests.support import spark_classes
from tests.support.polling import until
from tests.support.programs import ran
from tests.support.spark_here import PYTHON_PATH

SPARK_HOME = Path(pyspark.__path__[0])
ROOT = Path(__file__).parents[2]
# Masters and workers only pass messages.
DAEMON_MEMORY = "128m"
EXECUTOR_MEMORY = "512m"


def may_unshare() -> bool:
    """Return True if this process may make namespaces: as root, and if no sandbox forbids it."""
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


def hidden(directory: Path) -> list[str]:
    """The beginning of a command whose process finds nothing in the directory, as on another host."""
    return _in_namespace(["--mount"], f'mount -t tmpfs none "{directory}"')


def contained(directory: Path, *, at: Path) -> list[str]:
    """The beginning of a command that runs as in a container that was given the directory, read-only, under
    another path: it has mounts and process ids of its own, and its own /proc.
    """
    mounts = f'mount --bind "{directory}" "{at}" && mount -o remount,ro,bind "{at}"'
    return _in_namespace(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"], mounts)


def _in_namespace(flags: Sequence[str], mounts: str) -> list[str]:
    # The shell's place is taken by the command, which keeps its process id.
    return ["unshare", *flags, "--", "sh", "-ec", f'{mounts}\nexec "$@"', "sh"]


class Cluster:
    """Use `running_cluster`."""

    def __init__(self, directory: Path, host: str = HOST) -> None:
        self._directory = directory
        self._host = host
        self._port, self._web_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{self._host}:{self._port}"

    def start(self, workers: Sequence[Sequence[str]], cores: int) -> None:
        """One worker with so many cores for each prefix of a command; returns when all have registered."""
        words = ["master.Master", "--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("master", [], words, self._host)
        until(self._answers, "the master answers")
        for number, prefix in enumerate(workers):
            self.add_worker(f"worker-{number}", prefix, cores, self._host)
        until(lambda: self._workers_alive() == len(workers), "all workers have registered")

    def add_worker(self, name: str, prefix: Sequence[str], cores: int, host: str) -> None:
        words = ["worker.Worker", "--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
        self._start(name, prefix, [*words, self.master], host)

    def stop(self) -> None:
        """Ends the daemons, and with them their executors."""
        members = [one for process in self._processes for one in _family(process)]
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(members, timeout=20)
        for one in alive:
            one.kill()
        for process in self._processes:
            process.wait()

    def output(self, name: str) -> str:
        return (self._directory / name / "output.log").read_text(errors="replace")

    def _start(self, name: str, prefix: Sequence[str], words: Sequence[str], host: str) -> None:
        place = self._directory / name
        place.mkdir(parents=True)
        main, *rest = words
        command = [*prefix, str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        with (place / "output.log").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--host", host, *rest],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(place, host),
                cwd=place,
            )
        self._processes.append(process)

    def _check(self) -> None:
        for process in self._processes:
            code = process.poll()
            assert code is None, f"{process.args} ended with {code}, see {self._directory}"

    def _answers(self) -> bool:
        try:
            self._workers_alive()
        except (OSError, json.JSONDecodeError):
            # It listens before it has its pages: until then there is another one.
            return False
        return True

    def _workers_alive(self) -> int:
        self._check()
        with urllib.request.urlopen(f"http://{self._host}:{self._web_port}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])


def _environment(place: Path, host: str) -> Mapping[str, str]:
    mine = {
        "SPARK_HOME": SPARK_HOME,
        "SPARK_WORKER_DIR": place / "work",
        "SPARK_LOCAL_DIRS": place / "local",
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": spark_classes.jvm_options(),
    }
    # The workers' hosts know nothing of this checkout: what executors need, the job tells them.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))
    }
    return inherited | {name: str(value) for name, value in mine.items()}


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        found = psutil.Process(process.pid)
        return [found, *found.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class Network(NamedTuple):
    """A network that one other host is on: the addresses of this host and of that one, and the beginning of a
    command that runs there.
    """

    here: str
    there: str
    prefix: Sequence[str]


@contextmanager
def other_host() -> Iterator[Network]:
    """A network of a namespace that reaches this host by one address and nothing else; skips without one."""
    name = f"mpb{os.getpid()}"
    # Of the range for benchmarks, which nobody routes.
    here, there = (f"198.18.{os.getpid() % 256}.{number}" for number in (1, 2))
    steps = (
        f"link add {name}a type veth peer name {name}b netns {name}",
        f"addr add {here}/30 dev {name}a",
        f"link set {name}a up",
        f"-n {name} addr add {there}/30 dev {name}b",
        f"-n {name} link set {name}b up",
        f"-n {name} link set lo up",
    )
    try:
        ran(["ip", "netns", "add", name], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a network namespace takes root and iproute2: {error}")
    try:
        for step in steps:
            ran(["ip", *step.split()], check=True)
        yield Network(here, there, ["ip", "netns", "exec", name])
    finally:
        ran(["ip", "netns", "del", name], check=True)


@contextmanager
def running_cluster(
    directory: Path, workers: Sequence[Sequence[str]], cores: int = 1, host: str = HOST
) -> Iterator[Cluster]:
    """A cluster with a worker of so many cores for each prefix of a command, certainly gone afterwards."""
    cluster = Cluster(directory, host)
    try:
        cluster.start(workers, cores)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def session_on(cluster: Cluster, warehouse: Path, **settings: str) -> Iterator[SparkSession]:
    """A session whose executors are on the cluster; `task_maxFailures` is `spark.task.maxFailures`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(cluster.master).appName("mpbroker cluster tests")
        wanted = {
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # The package is not installed on the cluster.
            "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
            "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": spark_classes.jvm_options(),
            # All executors before the first task: the tests say which of them read what.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            **{f"spark.{name.replace('_', '.')}": value for name, value in settings.items()},
        }
        for name, value in wanted.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
