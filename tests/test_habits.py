"""The project's habits as tests: who may import whom, how long things get, what is never written.

Imports point downwards only, so that a reader can learn the project from the bottom up and a change has a
direction it cannot spread in. The rest keeps the code one screen at a time.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from mpbroker.ipc.log_levels import LOGGERS, inherited_words
from tests.support.behaviours import BEHAVIOURS

ROOT = Path(__file__).parent.parent
PACKAGES = ("shm", "mpbroker", "spark_integration", "pyspark_mpbroker")
PRODUCT = [ROOT / package for package in PACKAGES]
EVERYTHING = [*PRODUCT, ROOT / "tests", ROOT / "ops", ROOT / "docs", ROOT / ".ci"]
BUILT = (".venv", "build", "bin", "libs", "target", "__pycache__")

FUNCTION_LINES_MAX = 70
LINE_WIDTH = 110

# A room may import rooms of a smaller number, and itself.
RANKS = {
    "shm": 0,
    "mpbroker.config": 1,
    "mpbroker.ipc": 2,
    "mpbroker.http": 2,
    "mpbroker.registry": 2,
    "mpbroker.protocol": 3,
    "mpbroker.records": 3,
    "mpbroker.storage": 4,
    "mpbroker.metrics": 4,
    "mpbroker.quotas": 4,
    "mpbroker.security": 4,
    "mpbroker.client": 5,
    # Who reads the files of the log does not know the process that writes them.
    "mpbroker.log": 5,
    "mpbroker.remote": 6,
    "mpbroker.coordinator": 5,
    "mpbroker.handlers": 5,
    "mpbroker.network": 5,
    "mpbroker.inspection": 6,
    "mpbroker.reading": 7,
    "mpbroker.writing": 7,
    "mpbroker.migration": 7,
    "mpbroker.observe": 8,
    "mpbroker.startup": 8,
    "mpbroker.spark": 8,
    "mpbroker.exporter": 9,
    "mpbroker.console": 9,
    "mpbroker.supervisor": 10,
    "mpbroker.standby": 11,
    "mpbroker.testing": 11,
    "mpbroker.cli": 12,
}
# Rooms that are narrower than their rank: all they may import of ours.
NARROW = {
    "shm": (),
    "mpbroker.config": (),
    "mpbroker.protocol": (),
    "mpbroker.records": (),
    "mpbroker.inspection": (
        *(f"mpbroker.{room}" for room in ("config", "ipc", "protocol", "records", "storage")),
        # The topics of a broker at rest.
        *("mpbroker.coordinator.metadata.replay", "mpbroker.coordinator.metadata.state"),
        # The records of groups, to show them.
        *("mpbroker.coordinator.groups.records", "mpbroker.coordinator.runtime.log_records"),
        # `recover` starts and stops the log as its process does.
        *("mpbroker.log.directories.log_directory", "mpbroker.log.io.io_thread"),
        *("mpbroker.log.partition.partition_log", "mpbroker.log.recovery.log_loader"),
    ),
    # Who is who, and what others hold, is given to it.
    "mpbroker.quotas": ("shm", "mpbroker.ipc.meters"),
    "mpbroker.metrics": ("shm", "mpbroker.ipc", "mpbroker.protocol"),
    "mpbroker.security": ("mpbroker.config", "mpbroker.protocol"),
    "mpbroker.http": ("mpbroker.config",),
    "mpbroker.registry": ("mpbroker.config",),
    "mpbroker.observe": (
        *("shm", "mpbroker.ipc", "mpbroker.protocol", "mpbroker.records", "mpbroker.metrics"),
        *("mpbroker.inspection", "mpbroker.reading"),
        "mpbroker.storage",
        # The records of groups and committed offsets, what follows from them, and how it is described.
        *("mpbroker.coordinator.groups.records", "mpbroker.coordinator.runtime.log_records"),
        *("mpbroker.coordinator.groups.consumer.group", "mpbroker.coordinator.groups.consumer.records"),
        "mpbroker.coordinator.groups.consumer.described_group",
        *("mpbroker.coordinator.groups.member_memory", "mpbroker.client.group_descriptions"),
    ),
    "mpbroker.exporter": (
        *("shm", "mpbroker.config", "mpbroker.ipc", "mpbroker.protocol", "mpbroker.metrics"),
        *("mpbroker.http", "mpbroker.observe", "mpbroker.records"),
    ),
    "mpbroker.client": ("mpbroker.config", "mpbroker.protocol", "mpbroker.records", "mpbroker.security"),
    "mpbroker.remote": (
        "shm",
        *(f"mpbroker.{room}" for room in ("config", "ipc", "protocol", "records", "storage", "metrics")),
        # How background work reads, and how batches are checked.
        *("mpbroker.log.io", "mpbroker.log.partition.batch_walker", "mpbroker.log.partition.batch_checker"),
        "mpbroker.log.partition.state",
    ),
    "mpbroker.standby": (
        *("shm.clock", "shm.linux"),
        *(f"mpbroker.{room}" for room in ("config", "ipc", "records", "remote", "storage", "supervisor")),
        # Where in a partition's files an offset is.
        "mpbroker.reading.segments",
    ),
    "mpbroker.cli": (
        "shm",
        *(f"mpbroker.{room}" for room in ("config", "ipc", "protocol", "records", "security")),
        *(
            f"mpbroker.{room}"
            for room in ("metrics", "storage", "client", "observe", "startup", "supervisor", "standby")
        ),
        *("mpbroker.inspection", "mpbroker.migration", "mpbroker.reading", "mpbroker.registry"),
        "mpbroker.remote",
        "mpbroker.spark",
        "mpbroker.testing",
        # Checks for Spark look like those for a broker.
        "spark_integration.check",
        # The names of quotas.
        "mpbroker.quotas.entities",
    ),
    "mpbroker.console": (
        *(f"mpbroker.{room}" for room in ("config", "ipc", "protocol", "records", "metrics", "client")),
        *("mpbroker.http", "mpbroker.observe", "mpbroker.registry"),
        *("mpbroker.security.audit", "mpbroker.security.audit_log"),
        *("mpbroker.security.acls", "mpbroker.security.scram"),
    ),
    "mpbroker.testing": (
        "shm.region",
        *(f"mpbroker.{room}" for room in ("config", "ipc", "protocol", "client", "supervisor")),
    ),
    "mpbroker.reading": (
        "shm",
        "mpbroker.client",
        "mpbroker.protocol",
        "mpbroker.records",
        "mpbroker.ipc.table",
        "mpbroker.ipc.topology",
        "mpbroker.ipc.pointer",
        "mpbroker.config.extras",
        # An object store is read without its broker: the ledger names segments, the cut has the files after
        # them. Nothing here writes there.
        *(f"mpbroker.remote.{folder}" for folder in ("store", "layout", "ledger", "cuts")),
        # Audits go on behind damage, as the inspection does.
        "mpbroker.inspection.segment",
        "mpbroker.storage",
    ),
    "mpbroker.writing": (
        "mpbroker.client",
        "mpbroker.protocol",
        "mpbroker.records",
        "mpbroker.reading.errors",
        "mpbroker.reading.option_values",
    ),
    # Its face for users; what Spark loads stands at the top level, where PySpark looks.
    "mpbroker.spark": ("spark_integration",),
    "spark_integration": (
        *(f"mpbroker.{room}" for room in ("reading", "writing", "client", "protocol", "records", "registry")),
        # Settings of topics, in the files.
        *("mpbroker.migration.metadata_log", "mpbroker.migration.errors"),
        # Files of tables.
        *("mpbroker.remote.store", "mpbroker.remote.tier.store_clock"),
        # Spark loads it by its name, which has to begin with `pyspark`.
        "pyspark_mpbroker.daemon",
    ),
    "pyspark_mpbroker": ("spark_integration",),
}
# What the package itself offers to programs: `mpbroker.read`.
OF_THE_PACKAGE = ("mpbroker.reading",)
# Parts of a room that do not know these others: somebody else joins them.
APART = {
    "mpbroker.coordinator.runtime": ("mpbroker.coordinator.groups", "mpbroker.coordinator.transactions"),
    "mpbroker.coordinator.groups": ("mpbroker.coordinator.transactions",),
    "mpbroker.coordinator.transactions": ("mpbroker.coordinator.groups",),
}
# The folders of a room, from the bottom up: each imports those before it only. What lies flat in the room
# comes last.
FOLDERS = {
    "mpbroker.remote": ("store", "layout", "ledger", "cuts", "restore", "tier"),
    "mpbroker.log": (
        *("io", "partition", "append", "directories", "recovery", "manager"),
        *("retention", "compaction", "replica_move", "scrub"),
    ),
    "mpbroker.handlers": ("hot_path", "requests", "calls", "fetch", "produce"),
    "mpbroker.coordinator": ("metadata", "bulletins", "runtime", "groups", "transactions"),
    "mpbroker.network": ("acceptor", "processor"),
    "mpbroker.cli": ("text", "cluster", "records", "host", "remote", "doctor", "top", "spark"),
}
# Of these each part may import what lies flat in its room: the waiters of the coordinator, what APIs
# of handlers get, and what all commands share.
ABOVE_FLAT = {
    "mpbroker.handlers.api_parts": ("mpbroker.handlers.broker", "mpbroker.handlers.context"),
    "mpbroker.handlers.apis": ("mpbroker.handlers.broker", "mpbroker.handlers.context"),
    "mpbroker.coordinator.metadata": ("mpbroker.coordinator.waiting",),
    "mpbroker.coordinator.runtime": ("mpbroker.coordinator.waiting",),
    "mpbroker.network.acceptor": ("mpbroker.network", "mpbroker.network.handover"),
    "mpbroker.network.processor": ("mpbroker.network", "mpbroker.network.handover"),
    **{
        f"mpbroker.cli.{folder}": tuple(
            f"mpbroker.cli.{one}"
            for one in ("app", "broker_flags", "errors", "flags", "registry_flags", "serve_flags")
        )
        for folder in FOLDERS["mpbroker.cli"]
    },
}
# struct.pack_into clears its target before it writes: a reader of shared memory would see torn words. These
# rooms know no shared memory, they write into buffers of their own.
MAY_PACK_INTO = ("mpbroker/protocol/", "mpbroker/records/")

# Whoever frames requests and reads responses has a connection of its own: there is one such room.
SPEAKS_AS_A_CLIENT = ("encode_request_frame", "decode_response_frame", "create_connection")
CLIENT_ROOMS = ("mpbroker/client/", "mpbroker/protocol/headers.py")
# Each of these requests is built in one module.
BUILT_IN = {
    "FetchRequest": "mpbroker/client/consumer.py",
    "ListOffsetsRequest": "mpbroker/client/list_offsets.py",
    "MetadataRequest": "mpbroker/client/metadata.py",
    "OffsetCommitRequest": "mpbroker/client/committed_offsets.py",
}
OTHER_KAFKA_CLIENTS = ("kafka", "confluent_kafka", "aiokafka", "kio")

_CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+cimport\s|cimport\s+([\w.]+))", re.MULTILINE)
_PATH_OF_OURS = re.compile(r"\"((?:shm|mpbroker)/[\w/]+)/\w+\.h\"")
_STRING_OF_OURS = re.compile(r"[\"']((?:shm|\w*mpbroker|spark_integration)(?:\.\w+)+)[\"']")
# An event that nobody sets, and a program that sleeps.
_HIDDEN_SLEEP = re.compile(r"Event\(\)\.wait\([^)]|[\"'].*\btime\.sleep\(")
_BARE_EXCEPT = re.compile(r"^\s*except\s*:", re.MULTILINE)
_TEXTUAL_INCLUDE = re.compile(r"^\s*include\s+[\"'].*", re.MULTILINE)
_CYTHON_FUNCTION = re.compile(r"^(\s*)(?:def|cpdef|cdef)\s[^=]*\(")
_MODULE_FILE = re.compile(r"(?<![\w./<-])((?:\w+/)*\w+\.(?:pyx|pxd|pxi|py))(?![\w.])")
_API_MODULE = re.compile(r"k(\d\d)_[a-z][a-z0-9_]*\.py")
# Spelt so that this file does not contain them.
_MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me/\w+|opt/wh" + r"eels)(?:/|\b)")


def files(roots: list[Path], *suffixes: str) -> Iterator[Path]:
    """All files below the roots, but for what the build made there."""
    for root in roots:
        for path in sorted(root.rglob("*")):
            relative = path.relative_to(ROOT)
            made_by_cython = path.suffix == ".c" and path.with_suffix(".pyx").exists()
            built = made_by_cython or set(relative.parts) & set(BUILT)
            if path.is_file() and not built and (not suffixes or path.suffix in suffixes):
                yield path


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The part of a module's name that the import rule speaks of."""
    parts = module.split(".")
    if parts == ["mpbroker", "__main__"]:
        return "mpbroker.cli"
    return ".".join(parts[:2]) if parts[0] == "mpbroker" else parts[0]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk all statements and handlers of errors, but none of their expressions: those are many more."""
    found = [tree]
    for node in found:
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            found += inner if isinstance(inner, list) else ()
    return iter(found)


@cache
def import_statements(source: str) -> tuple[list[ast.Import | ast.ImportFrom], bool]:
    """Import statements of a Python or Cython source, and whether it is Cython."""
    is_cython = False
    try:
        tree = ast.parse(source)
    except SyntaxError:
        # Only the import statements matter here, and they stand in lines of their own.
        is_cython = True
        lines = re.findall(r"^\s*(?:from\s+[\w.]+\s+import\s|import\s).*$", source, re.MULTILINE)
        tree = ast.parse("\n".join(re.sub(r"\(\s*$", "a", line).strip() for line in lines))
    return [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)], is_cython


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyx"))


def imports_of(source: str, module: str, *, is_package: bool = False, with_names: bool = False) -> set[str]:
    """Modules of ours that a Python or Cython source names, relative imports made absolute.

    A string that names a module is an import, too, for somebody who imports it later. `with_names`: and what
    is imported from them, which may be modules too.
    """
    found = {path.replace("/", ".") for path in _PATH_OF_OURS.findall(source)}
    found |= set(filter(is_module, _STRING_OF_OURS.findall(source)))
    nodes, is_cython = import_statements(source)
    if is_cython:
        found |= {one or other for one, other in _CIMPORT.findall(source)}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, *filter(None, [base])])
            # `from mpbroker import log` names a room in its second half.
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= (inner if base == "mpbroker" else {base}) | (inner if with_names else set())
    return {name for name in found if name.split(".")[0] in PACKAGES}


def folder_rank(module: str) -> int:
    """Where a module's folder stands in `FOLDERS`; modules that lie flat in their room stand above all."""
    folders = FOLDERS[room_of(module)]
    parts = module.split(".")
    return folders.index(parts[2]) if len(parts) > 2 and parts[2] in folders else len(folders)


def may_import(module: str, imported: str) -> bool:
    room, target = room_of(module), room_of(imported)
    part = module.rpartition(".")[0]
    if part in APART and imported.startswith(APART[part]):
        return False
    if room == target and room in FOLDERS:
        if imported in ABOVE_FLAT.get(part, ()):
            return True
        return folder_rank(module) >= folder_rank(imported)
    if room == target or room == "mpbroker":
        return room == target or (room == "mpbroker" and target in OF_THE_PACKAGE)
    if room in NARROW:
        return any(imported == name or imported.startswith(f"{name}.") for name in NARROW[room])
    return room in RANKS and target in RANKS and RANKS[target] < RANKS[room]


def long_functions(source: str) -> list[str]:
    """Functions of a Python source that do not fit on a screen."""
    if source.count("\n") < FUNCTION_LINES_MAX:
        return []
    functions = [
        node
        for node in statements(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    lengths = {node: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    return [f"{node.name} has {lines} lines" for node, lines in lengths.items() if lines > FUNCTION_LINES_MAX]


def long_cython_functions(source: str) -> list[str]:
    """The same for Cython, by indentation: a function ends where a line stands as far left as its head."""
    lines = source.splitlines()
    found = []
    for start, line in enumerate(lines):
        head = _CYTHON_FUNCTION.match(line)
        if head is None:
            continue
        end = start
        for number in range(start + 1, len(lines)):
            text = lines[number]
            if (
                text.strip()
                and len(text) - len(text.lstrip()) <= len(head[1])
                and not text.lstrip().startswith(")")
            ):
                break
            end = number if text.strip() else end
        if end - start + 1 > FUNCTION_LINES_MAX:
            found.append(f"{line.strip()} has {end - start + 1} lines")
    return found


def long_c_functions(source: str) -> list[str]:
    """The same for C: a function ends with a brace that stands first in its line."""
    found, head = [], 0
    lines = source.splitlines()
    for number, line in enumerate(lines):
        if line and not line[0].isspace() and line[0] not in "{}/#*":
            head = number
        elif line == "}" and number - head + 1 > FUNCTION_LINES_MAX:
            found.append(f"{lines[head]} has {number - head + 1} lines")
    return found


def broken(paths: Iterator[Path], check: Callable[[str], list[str] | list[int]]) -> list[str]:
    """`path: finding` for everything a check finds."""
    return [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in paths
        for finding in check(path.read_text(encoding="utf-8"))
    ]


def test_imports_point_downwards() -> None:
    wrong = []
    for path in files(PRODUCT, ".py", ".pyx", ".pxd"):
        module = module_of(path)
        found = imports_of(path.read_text(), module, is_package=path.stem == "__init__")
        wrong += [f"{module} imports {name}" for name in sorted(found) if not may_import(module, name)]
    assert wrong == []


def import_graph() -> dict[str, set[str]]:
    """Which modules of ours each module imports; those for types only count like all others."""
    sources = list(files(PRODUCT, ".py", ".pyx", ".pxd"))
    modules = {module_of(path) for path in sources}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for path in sources:
        module = module_of(path)
        found = imports_of(path.read_text(), module, is_package=path.stem == "__init__", with_names=True)
        graph[module] |= found & modules - {module}
    return graph


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types count: whoever reads one module of a circle has to read all of them."""
    TopologicalSorter(import_graph()).prepare()


def test_every_room_has_a_rank() -> None:
    rooms = {room_of(module_of(path)) for path in files([ROOT / "mpbroker"], ".py", ".pyx")} - {"mpbroker"}
    assert rooms | {"shm"} == set(RANKS)


def test_every_room_has_a_row_in_the_architecture() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert {row.replace("/", ".") for row in rows} >= set(RANKS)


def test_functions_fit_on_a_screen() -> None:
    python = broken(files(EVERYTHING, ".py"), long_functions)
    assert broken(files(PRODUCT, ".h"), long_c_functions) == []
    assert python + broken(files(PRODUCT, ".pyx", ".pxd"), long_cython_functions) == []


def test_native_lines_are_as_short_as_python_ones() -> None:
    """Ruff holds Python to the same width."""

    def long_lines(source: str) -> list[str]:
        return [line for line in source.splitlines() if len(line) > LINE_WIDTH]

    assert broken(files(PRODUCT, ".pyx", ".pxd", ".h"), long_lines) == []


def test_native_modules_import_each_other() -> None:
    """A text that is included names no module: neither a reader nor these tests see who uses what."""
    assert broken(files(PRODUCT, ".pyx", ".pxd"), _TEXTUAL_INCLUDE.findall) == []


def test_native_code_swallows_no_error() -> None:
    """Ruff looks at Python's (E722, S110)."""
    assert broken(files(PRODUCT, ".pyx", ".pxd"), _BARE_EXCEPT.findall) == []


def client_signs(source: str) -> list[str]:
    """Names that only a client of Kafka's protocol uses, and modules that are one."""
    found: list[str] = []
    if not any(name in source for name in (*SPEAKS_AS_A_CLIENT, *OTHER_KAFKA_CLIENTS)):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            found += [alias.name for alias in node.names if alias.name in SPEAKS_AS_A_CLIENT]
        else:
            modules = []
            if isinstance(node, ast.Attribute) and node.attr in SPEAKS_AS_A_CLIENT:
                found.append(node.attr)
        found += [name for name in modules if name.split(".")[0] in OTHER_KAFKA_CLIENTS]
    return found


# These rooms work in processes of other rooms, and log as those.
LOGS_AS = {
    "mpbroker.console": "mpbroker.exporter",
    "mpbroker.http": "mpbroker.exporter",
    "mpbroker.observe": "mpbroker.exporter",
    "mpbroker.standby": "mpbroker.supervisor",
    "mpbroker.startup": "mpbroker.supervisor",
}
# Rooms that Spark's processes use, too: they have one logger there.
LOGGERS_OF_OTHERS = {"mpbroker.spark", "mpbroker.kafka.request.logger", "mpbroker.kafka.authorizer.logger"}
# They are about all loggers.
ABOUT_LOGGERS = {"mpbroker.ipc.log_levels", "mpbroker.supervisor.logs", "mpbroker.ipc.process"}


def test_each_module_has_the_logger_of_its_part() -> None:
    def logger_of(module: str) -> str:
        return LOGS_AS.get(room_of(module), LOGGERS[inherited_words(module)[0]])

    odd = [
        (module, name)
        for path in files([ROOT / "mpbroker"], ".py", ".pyx")
        for name in re.findall(r'getLogger\("([^"]*)"\)', path.read_text())
        if (module := module_of(path)) not in ABOUT_LOGGERS
        and name not in LOGGERS_OF_OTHERS | {logger_of(module)}
    ]
    assert odd == [], "clients set levels by the names in mpbroker/ipc/log_levels.py"


def test_there_is_one_kafka_client() -> None:
    """Two would differ in what they do when a connection breaks, and only one of them would be tested."""
    sources = [
        path
        for path in files(PRODUCT, ".py")
        if not path.relative_to(ROOT).as_posix().startswith(CLIENT_ROOMS)
    ]
    assert broken(iter(sources), client_signs) == []


def test_a_request_is_built_in_one_module() -> None:
    building = re.compile(rf"\b({'|'.join(BUILT_IN)})\(")
    found = {
        (match[1], path.relative_to(ROOT).as_posix())
        for path in files(PRODUCT, ".py")
        for match in building.finditer(path.read_text())
        if "protocol" not in path.parts
    }
    assert found == set(BUILT_IN.items())


def test_shared_words_are_never_packed_into() -> None:
    sources = [path.relative_to(ROOT).as_posix() for path in files(PRODUCT, ".py", ".pyx")]
    users = [name for name in sources if "pack_into" in (ROOT / name).read_text()]
    assert [name for name in users if not name.startswith(MAY_PACK_INTO)] == []


def test_tests_never_sleep() -> None:
    """Ruff bans time.sleep in tests (tests/ruff.toml); these are what it does not see."""
    assert broken(files([ROOT / "tests"], ".py"), _HIDDEN_SLEEP.findall) == []


def unlike_modules(tests: Path, product: Path, prefix: str = "") -> list[str]:
    """Paths of test modules, as BEHAVIOURS has them, that are named after no module of the same folder."""
    found = []
    for folder in [path for path in (product, *product.rglob("*/")) if (path / "__init__.py").exists()]:
        place = tests / folder.relative_to(product)
        modules = {path.stem for path in folder.iterdir() if path.suffix in (".py", ".pyx")}
        for test in sorted(place.glob("test_*.py")):
            name = test.stem.removeprefix("test_")
            if not any(name == module or name.startswith(f"{module}_") for module in modules):
                found.append(prefix + (test.relative_to(tests).parent / name).as_posix())
    return found


def test_test_modules_are_named_after_modules() -> None:
    """Or after a behaviour that BEHAVIOURS lists. What starts with the module's name tests a part of it."""
    unlike = unlike_modules(ROOT / "tests", ROOT / "mpbroker")
    unlike = [path for path in unlike if "/" in path and not path.startswith("spark/")]
    unlike += unlike_modules(ROOT / "tests/shm", ROOT / "shm", "shm/")
    listed = {path for paths in BEHAVIOURS.values() for path in paths}
    assert set(unlike) - listed == set()
    assert listed - set(unlike) == set(), "listed, and named after a module or not there"


def test_one_module_per_kafka_api() -> None:
    modules = [path for path in files([ROOT / "mpbroker/handlers/apis"], ".py") if path.stem != "__init__"]
    assert [path.name for path in modules if not _API_MODULE.fullmatch(path.name)] == []
    keys = [path.name[:3] for path in modules]
    assert [key for key in keys if keys.count(key) > 1] == []
    undocumented = [
        path.name
        for path in modules
        if "ersion" not in (ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert undocumented == [], "the docstring of an API says its versions and behaviour"


def strangers(known: set[str]) -> Callable[[str], list[str]]:
    """Modules that a text names, whole or by the end of their path, and that are not there."""

    def found(text: str) -> list[str]:
        ends = (match[1] for match in _MODULE_FILE.finditer(text))
        return [end for end in ends if not any(f"/{path}".endswith(f"/{end}") for path in known)]

    return found


def test_modules_that_are_named_are_there() -> None:
    there = {str(path.relative_to(ROOT)) for path in files(EVERYTHING, ".py", ".pyx", ".pxd")}
    texts = [*files(PRODUCT, ".py", ".pyx", ".pxd", ".h"), *files([ROOT / "docs"], ".md")]
    # The form of all names of APIs' modules.
    assert broken(iter(texts), strangers(there | {"setup.py", "kNN_name.py"})) == []


def test_paths_of_a_machine_are_never_written() -> None:
    top = [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml", "setup.py")]
    texts = [
        *files(EVERYTHING, ".py", ".pyx", ".pxd", ".h", ".c", ".sh", ".md", ".service", ".go", ".java"),
        *top,
    ]
    assert broken(iter(texts), _MACHINE_PATH.findall) == []
