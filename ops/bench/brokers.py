"""Brokers under test: mpbroker from this tree and Apache Kafka from Maven, started and stopped alike."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol, Self

import psutil

from mpbroker.testing.broker import KEEP_NO_BYTECODE
from ops.bench import frames
from ops.bench.ports import HOST as HOST
from ops.bench.ports import free_port as free_port
from ops.bench.processes import Tree
from ops.setup import maven

ROOT = Path(__file__).resolve().parents[2]

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
POLL_S = 0.002

# Records of tests and benchmarks may be of any time: retention does not run meanwhile.
RETENTION_DELAY_MS = 86_400_000

MPBROKER_COMMAND = (
    f"{shlex.quote(sys.executable)} -m mpbroker serve --listeners PLAINTEXT://{HOST}:{{port}}"
    " --log-dirs {log_dir} --processors 1 --handlers 2"
    f" -o log.initial.task.delay.ms={RETENTION_DELAY_MS} -o group.initial.rebalance.delay.ms=0"
)

KAFKA_CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAQ"

KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
{quorum}{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={log_dir}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
log.initial.task.delay.ms={retention_delay_ms}
"""

# The flags of Kafka's own start script.
KAFKA_JVM = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *(
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-Djava.awt.headless=true",
    ),
)


class BrokerError(Exception):
    """The broker did not start, died, or did not stop; the message ends with its output."""


class Process(Protocol):
    """A broker's process: the part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Launch(Protocol):
    """Starts a command whose output goes to a file, in a session of its own."""

    def __call__(
        self, command: Sequence[str], output: BinaryIO, environment: Mapping[str, str], /
    ) -> Process: ...


class RunTool(Protocol):
    """Runs one of Kafka's tools: words that start a JVM, and those of the tool."""

    def __call__(self, java: Sequence[str], words: Sequence[str], /) -> object: ...


def execute(command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> Process:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


@dataclass
class Broker:
    """A running broker in a directory of its own. Subclasses define how to start it."""

    directory: Path
    port: int = field(default_factory=free_port)
    ready_s: float = 0.0
    process: Process | None = None
    stop_timeout_s: float = STOP_TIMEOUT_S

    name = "broker"
    launch: ClassVar[Launch] = staticmethod(execute)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> frames.Address:
        return HOST, self.port

    @property
    def log_dir(self) -> Path:
        return self.directory / "data"

    @property
    def output_path(self) -> Path:
        return self.directory / "output.log"

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def tree(self) -> Tree:
        assert self.process is not None, "the broker was not started"
        return Tree(psutil.Process(self.process.pid))

    def output(self) -> str:
        """Return the broker's output so far, without a last line that is still incomplete."""
        text = self.output_path.read_text(errors="replace") if self.output_path.exists() else ""
        return text[: text.rfind("\n") + 1]

    def start(self) -> None:
        """Start the broker, and wait until ApiVersions is answered."""
        self.log_dir.mkdir(0o750, parents=True, exist_ok=True)
        command = self.command()
        with open(self.output_path, "ab") as output:
            start = time.monotonic()
            self.process = self.launch(command, output, self.environment())
        self._wait_ready(start + START_TIMEOUT_S)
        self.ready_s = time.monotonic() - start

    def _wait_ready(self, deadline: float) -> None:
        assert self.process is not None
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                frames.advertised_apis(self.address, timeout_s=5)
                return
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerError(f"{self.name} is not ready in {START_TIMEOUT_S:.0f} s:\n{self.output()}")
            time.sleep(POLL_S)
        raise BrokerError(f"{self.name} exited with {self.process.returncode} at start:\n{self.output()}")

    def stop(self) -> int:
        """Stop by SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise BrokerError(f"{self.name} still runs {self.stop_timeout_s:.0f} s after SIGTERM") from error

    @contextlib.contextmanager
    def awake(self) -> Iterator[Self]:
        """Resume a paused broker while the body runs, and pause it again afterwards."""
        self.tree().resume()
        try:
            yield self
        finally:
            self.tree().pause()

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree."""
        if self.process is None or self.process.poll() is not None:
            return
        for member in self.tree().members():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()


@dataclass
class Mpbroker(Broker):
    """mpbroker, by default from this tree. {port} and {log_dir} in the command `template` are filled in."""

    template: str = MPBROKER_COMMAND
    flags: Sequence[str] = ()

    name = "mpbroker"
    # Flags of a class of brokers; they precede `flags`.
    always: ClassVar[Sequence[str]] = ()

    def command(self) -> Sequence[str]:
        filled = self.template.format(port=self.port, log_dir=shlex.quote(str(self.log_dir)))
        return [*shlex.split(filled), *self.always, *self.flags]

    @property
    def runtime_dir(self) -> Path:
        """Return a directory of this broker alone, so that leftovers of other brokers are not in it."""
        return Path(f"/dev/shm/mpbroker-{os.getuid()}-port-{self.port}")

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)

    def environment(self) -> Mapping[str, str]:
        # A session of Spark in this process may have put the checkout there, too.
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join([str(ROOT), *(one for one in given if one not in ("", str(ROOT)))])
        ours = {"PYTHONPATH": path, "MPBROKER_RUNTIME_DIR": str(self.runtime_dir)}
        # As where it is installed: with bytecode.
        return {name: text for name, text in os.environ.items() if name != KEEP_NO_BYTECODE} | ours


def run_tool(java: Sequence[str], words: Sequence[str]) -> None:
    """Run one of Kafka's tools in a JVM of its own, which the first words start."""
    done = subprocess.run([*java, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerError(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")


@dataclass
class Kafka(Broker):
    """Apache Kafka, one node, KRaft, with the heap and collector of its own start script."""

    properties: Sequence[str] = ()
    jvm: Sequence[str] = KAFKA_JVM
    controller_port: int = field(default_factory=free_port)
    # Whether the only controller's quorum may grow (KIP-853).
    has_dynamic_quorum: bool = False

    name = "Apache Kafka"
    run_tool: ClassVar[RunTool] = staticmethod(run_tool)

    def command(self) -> Sequence[str]:
        java, libs = maven.java(), maven.kafka_classpath()
        properties = self.directory / "server.properties"
        text = KAFKA_PROPERTIES.format(
            host=HOST,
            port=self.port,
            quorum="controller.quorum.bootstrap.servers="
            if self.has_dynamic_quorum
            else "controller.quorum.voters=1@",
            controller_port=self.controller_port,
            log_dir=self.log_dir,
            retention_delay_ms=RETENTION_DELAY_MS,
        )
        properties.write_text(text + "\n".join(self.properties) + "\n")
        if not (self.log_dir / "meta.properties").exists():
            self._format(java, libs, properties)
        return [java, *self.jvm, "-cp", libs, "kafka.Kafka", str(properties)]

    def _format(self, java: str, libs: str, properties: Path) -> None:
        # Where properties name other directories than ours, they may be formatted already.
        how = ["--ignore-formatted", *(["--standalone"] if self.has_dynamic_quorum else [])]
        words = ["kafka.tools.StorageTool", "format", *how, "-t", KAFKA_CLUSTER_ID, "-c", str(properties)]
        self.run_tool([java, *self.jvm, "-cp", libs], words)


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Start a broker and yield it; kill all of its processes afterwards."""
    try:
        broker.start()
        yield broker
        broker.stop()
    finally:
        broker.kill()
