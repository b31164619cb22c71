"""What holds for all tests.

Property tests try the same examples in each run: all in `make test-all`, a fifth of them in `make
test`, a few in `make coverage`, and new ones in `make explore`.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.testing.broker import Broker
from ops.bench.brokers import Kafka, Mpbroker
from tests.support import client_tools, preloaded, spark_classes, spark_here

# A loaded machine is slow, not wrong. To explain a failure, hypothesis would trace every line once more.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True, phases=PHASES)
settings.register_profile("explore", deadline=None, print_blob=True, phases=PHASES)
for name, part in (("short", 5), ("coverage", 25)):
    settings.register_profile(
        name, settings.get_profile("repeatable"), max_examples=settings.default.max_examples // part
    )
settings.load_profile("repeatable")

# Hundreds of brokers are started, and what they leave is kept for a while. Crowds come at once: where the
# backlog is full, the next client tries again only after a second.
Mpbroker.always = ("-o", "log.journal.bytes=1048576", "-o", "socket.listen.backlog.size=4096")
# What is the same in each start is done once: tests of the start itself use its command.
Mpbroker.launch = staticmethod(preloaded.launch)
Broker._popen = staticmethod(preloaded.popen)
Kafka.run_tool = staticmethod(lambda _java, words: client_tools.kafka_tool(*words))
pytest_plugins = tuple(
    f"tests.support.{name}" for name in ("async_tests", "forms", "in_memory", "kinds", "workers")
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples, for modules that ask for it later; --hypothesis-profile comes next."""
    if not config.getoption("--long"):
        settings.load_profile("short")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and the programs of the tests would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Collecting thousands of tests leaves little garbage, and looking for it takes a tenth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze all objects of the collected tests, so that the garbage collector never looks at them again.

    Libraries in C++ complain of objects that are left when Python ends; pytest collects garbage before.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        made = SharedMemory(Path(directory) / "public", Sizes(partition_slots=16))
        yield made
        made.close()


@pytest.fixture(scope="session", autouse=True)
def _small_sparks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_SUBMIT_OPTS", spark_classes.driver_options())
        environment.setenv("SPARK_LAUNCHER_OPTS", spark_classes.SHORT_LIVED_JVM)
        environment.delenv("SPARK_CONF_DIR", raising=False)
        environment.setenv("PYTHONPATH", str(spark_here.WORKERS), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Python may not keep bytecode, each of hundreds of brokers would compile its source anew."""
    with pytest.MonkeyPatch.context() as environment:
        if sys.dont_write_bytecode:
            environment.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            environment.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_in_this_environment(_small_sparks: None, _compiled_once: None) -> None:
    """The first test with a broker may be one that sets variables for itself."""
    preloaded.usual_environment()


@pytest.fixture
def tidy() -> None:
    """For tests that count descriptors: the collector closes none meanwhile that an earlier test left."""
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What lies in cycles holds descriptors: a process of thousands of tests would run out of low ones."""
    yield
    gc.collect()
