"""Programs that the client tests run: found or named, never skipped."""

import atexit
import fcntl
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from ops.setup import maven
from tests.support import class_archive
from tests.support.polling import until

INSTALL = {
    "kcat": "apt-get install kcat",
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
}
RUN_TIMEOUT_S = 300
FRANZ_SOURCE = Path(__file__).parents[1] / "real_clients" / "franz"
FRANZ = Path(__file__).parents[2] / "build" / "franz" / "franz"
JAVA_SOURCE = Path(__file__).parents[1] / "real_clients" / "java"
JAVA_CLASSES = FRANZ.parents[1] / "kafka" / "programs"
_INT = struct.Struct(">i")


class ToolError(AssertionError):
    """A program ended with an error; the message is what it printed."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: {INSTALL[name]}", pytrace=False)
    return found


def run(command: Sequence[str], stdin: bytes = b"", cwd: Path | None = None) -> bytes:
    """The program's standard output; it must end with 0 in time."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=RUN_TIMEOUT_S, cwd=cwd, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")[-4000:]
        raise ToolError(f"{' '.join(command[:8])} ended with {done.returncode}:\n{said}")
    return done.stdout


def eventually(holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait for what Kafka does not promise at once: it answers changes before all metadata knows them.

    Most questions here are requests to a broker, which has better things to do than to answer them in turns.
    """
    until(holds, what, lambda: time.sleep(0.02))  # noqa: TID251


@cache
def _java() -> tuple[str, str]:
    """Return the program, and where it finds classes: Kafka's, and those of our own programs."""
    try:
        java, classpath = maven.java(), maven.kafka_classpath()
    except maven.MissingToolError as error:
        pytest.fail(str(error), pytrace=False)
    class_archive.make_archive()
    _compile(java)
    return java, f"{classpath}:{JAVA_CLASSES}"


def _compile(java: str) -> None:
    """Compile our programs once for all that run side by side: in each JVM it takes longer than its start."""
    JAVA_CLASSES.mkdir(parents=True, exist_ok=True)
    sources = sorted(JAVA_SOURCE.glob("*.java"))
    changed = max(
        maven.LIBS.stat().st_mtime, Path(java).stat().st_ctime, *(s.stat().st_mtime for s in sources)
    )
    made = JAVA_CLASSES / "made"
    with open(JAVA_CLASSES / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.stat().st_mtime < changed:
            jars = ":".join(map(str, maven.LIBS.glob("*.jar")))
            javac = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-cp", jars]
            run([*javac, "-d", str(JAVA_CLASSES), *map(str, sources)])
            made.touch()


# A JVM that hardly optimises, for what lives for a second.
SMALL_JVM = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *class_archive.FLAGS)


# One that runs many tools after each other; each may leave something behind. Their settings are no news.
TOOLS_JVM = ("-Xmx1536M", *SMALL_JVM[1:], "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def java_command(main_class: str, *arguments: str, jvm: Sequence[str] = SMALL_JVM) -> list[str]:
    """Return the command of one of Kafka's command line tools, or of a program of ours."""
    java, classpath = _java()
    return [java, *jvm, "-cp", classpath, main_class, *arguments]


class KafkaTools:
    """Run Kafka's command line tools in one JVM, one after the other.

    The start of a JVM takes longer than what most of them do. `Tools.java` describes the protocol.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, main_class: str, arguments: Sequence[str], stdin: bytes) -> tuple[str, str]:
        """The tool's standard output and standard error. Raises ToolError."""
        if not self._busy.acquire(blocking=False):
            # Beside a tool that a thread runs.
            return run(java_command(main_class, *arguments), stdin).decode(), ""
        try:
            words = [word.encode() for word in (main_class, *arguments)]
            request = _INT.pack(len(words)) + b"".join(map(_counted, words)) + _counted(stdin)
            code, out, err = self._exchange(request, main_class)
        finally:
            self._busy.release()
        if code:
            said = (out + err).decode(errors="replace")[-4000:]
            raise ToolError(f"{' '.join((main_class, *arguments[:6]))} ended with {code}:\n{said}")
        return out.decode(), err.decode(errors="replace")

    def _exchange(self, request: bytes, main_class: str) -> tuple[int, bytes, bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                java_command("Tools", jvm=TOOLS_JVM), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        hangs = threading.Timer(RUN_TIMEOUT_S, process.kill)
        hangs.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            code = _INT.unpack(process.stdout.read(4))[0]
            out, err = (process.stdout.read(_INT.unpack(process.stdout.read(4))[0]) for _ in range(2))
        except (OSError, struct.error) as error:
            process.kill()
            raise ToolError(f"{main_class}: the JVM of Kafka's tools has gone or hung") from error
        finally:
            hangs.cancel()
        return code, out, err

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _counted(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


_kafka_tools = KafkaTools()
atexit.register(_kafka_tools.end)


def kafka_tool(main_class: str, *arguments: str, stdin: bytes = b"") -> str:
    return _kafka_tools.run(main_class, arguments, stdin)[0]


def kafka_tool_errors(main_class: str, *arguments: str) -> str:
    """Return the standard error of a tool that ends as if nothing were wrong."""
    return _kafka_tools.run(main_class, arguments, b"")[1]


def dump(*arguments: str) -> str:
    """Run DumpLogSegments, Kafka's reference for files."""
    return kafka_tool("org.apache.kafka.tools.DumpLogSegments", *arguments)


def go() -> str:
    """The system's, or the one that `make setup` puts beside this Python where that is too old."""
    asked = re.search(r"^go (\d+)\.(\d+)", (FRANZ_SOURCE / "go.mod").read_text(), re.MULTILINE)
    assert asked is not None
    for directory in (None, str(Path(sys.executable).parent)):
        if (found := shutil.which("go", path=directory)) is None:
            continue
        # Elsewhere than in the module, where it might fetch another one to answer.
        version = re.search(r"go(\d+)\.(\d+)", run([found, "version"], cwd=Path(found).parent).decode())
        if version and (int(version[1]), int(version[2])) >= (int(asked[1]), int(asked[2])):
            return found
    pytest.fail(f"no Go {asked[1]}.{asked[2]} or newer: make setup puts one into .venv", pytrace=False)


@cache
def franz_program() -> str:
    """The franz-go program: built by `make setup`, or here, once for all that run side by side."""
    return _built_by_go(FRANZ, "build", ".")


@cache
def franz_tests() -> str:
    """The program of franz-go's own tests, of the version that our program has."""
    return _built_by_go(FRANZ.with_name("kgo.test"), "test", "-c", "github.com/twmb/franz-go/pkg/kgo")


def _built_by_go(program: Path, command: str, *arguments: str) -> str:
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = max(path.stat().st_mtime for path in FRANZ_SOURCE.iterdir())
    with open(FRANZ.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or program.stat().st_mtime < sources:
            flags, packages = arguments[:-1], arguments[-1]
            run([go(), command, *flags, "-o", str(program), packages], cwd=FRANZ_SOURCE)
            program.touch()
    return str(program)
