"""What kind of test each one is: `unit`, `process` or `clients`.

unit     Runs in the process of the tests and forks of it. `make test-fast` runs these, but for soaks.
process  Starts a broker, or another program: a command of ours, a compiler, another pytest.
clients  Runs Spark, Java, Go or another foreign client, mostly beside a broker.

Folders and fixtures tell brokers and clients. Any other test that starts a program says so by itself, with
`@pytest.mark.process` or `@pytest.mark.clients`. A unit test that starts a program fails and says so.

Tests run in the order clients, process, unit: what takes long begins early, and many short ones fill the end,
when some workers have nothing left. Of unit tests the files with most come first, for the same reason.
Of Spark's files those that share a session come before those that share another one, beside Spark's Kafka
connector, and these before those that need one of their own.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from mpbroker.testing.broker import Broker as TestingBroker
from ops.bench.brokers import Broker

SPARK_FOLDER = "spark"
SPARK_WORKERS = 2
# Of one worker of their own, and of one JVM: fixture `beside_the_connector`.
BESIDE_THE_CONNECTOR = ("test_beside_the_connector.py", "test_options.py", "test_readers.py")
CLIENT_FOLDERS = (SPARK_FOLDER, "real_clients")
CLIENT_FIXTURES = frozenset({"spark", "franz", "transacting_java", "transacting_franz"})
BROKERS = (Broker, TestingBroker)
# Of the plug-in, whose module imports the class when a test wants one.
BROKER_FIXTURES = frozenset({"mpbroker_broker", "mpbroker_own_broker"})
PROCESS_FOLDERS = ("network/acceptor", "chaos")
_WORD = re.compile(r"\w+")
ORDER = ("clients", "process", "unit")


def kind_of(item: pytest.Item) -> str:
    for kind in ("clients", "process"):
        if item.get_closest_marker(kind) is not None:
            return kind
    folder = item.nodeid.split("/")[1] if "/" in item.nodeid else ""
    fixtures = set(getattr(item, "fixturenames", ()))
    if folder in CLIENT_FOLDERS or fixtures & CLIENT_FIXTURES:
        return "clients"
    if (
        item.nodeid.startswith(tuple(f"tests/{one}/" for one in PROCESS_FOLDERS))
        or fixtures & BROKER_FIXTURES
        or _knows_a_broker(getattr(item, "module", None))
        or _is_given_one(item)
    ):
        return "process"
    return "unit"


@cache
def _knows_a_broker(module: ModuleType | None) -> bool:
    return module is not None and _has_broker(vars(module), None)


def _has_broker(names: Mapping[str, object], wanted: Collection[str] | None) -> bool:
    """Tell whether one of these names, or any, is a class of brokers."""
    found = names.values() if wanted is None else (names.get(name) for name in wanted)
    return any(isinstance(one, type) and issubclass(one, BROKERS) for one in found)


def _is_given_one(item: pytest.Item) -> bool:
    """Return True if a fixture of the test returns a broker, going by its annotation."""
    info = getattr(item, "_fixtureinfo", None)
    return info is not None and any(_makes_one(defs[-1].func) for defs in info.name2fixturedefs.values())


@cache
def _makes_one(fixture: Callable[..., object]) -> bool:
    return _has_broker(fixture.__globals__, _WORD.findall(str(fixture.__annotations__.get("return"))))


def _session_of(item: pytest.Item) -> int:
    """Rank tests by the session of Spark that they have: the shared one, the other shared one, their own."""
    fixtures = getattr(item, "fixturenames", ())
    return 2 if "no_spark" in fixtures else int("beside_the_connector" in fixtures)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its kind before `-m` chooses, and sort them; those of a file stay together."""
    kinds = {item: kind_of(item) for item in items}
    for item, kind in kinds.items():
        item.add_marker(kind)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)

    def place(tests: list[pytest.Item]) -> tuple[int, bool, int, bool, int]:
        first = min(ORDER.index(kinds[item]) for item in tests)
        is_spark = f"/{SPARK_FOLDER}/" in tests[0].nodeid
        is_soak = any(item.get_closest_marker("soak") for item in tests)
        many = len(tests) if ORDER[first] == "unit" else 0
        return first, not is_spark, max(map(_session_of, tests)), not is_soak, -many

    items[:] = [item for tests in sorted(files.values(), key=place) for item in tests]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share tests out by files; those of Spark to few workers, each of which needs a JVM for its sessions."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if f"/{SPARK_FOLDER}/" not in file:
                return file
            if file.endswith(BESIDE_THE_CONNECTOR):
                return f"{SPARK_FOLDER} beside the connector"
            return f"{SPARK_FOLDER} {spark_files.setdefault(file, len(spark_files)) % SPARK_WORKERS}"

    spark_files: dict[str, int] = {}
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Hold unit tests to what their kind says."""
    if item.get_closest_marker("unit") is None:
        return (yield)
    with patch.object(subprocess.Popen, "__init__", _refuse):
        return (yield)


def _refuse(_program: object, args: object, *_: object, **__: object) -> None:
    raise AssertionError(
        f"a unit test starts {args}: mark it with @pytest.mark.process; if it is a broker, take it from a"
        " fixture that is annotated with its class, or import the class in the test's module"
    )
