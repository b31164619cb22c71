"""Pages of the docs: links lead somewhere, commands and settings exist, messages are those of the code.

The same holds for what messages of the code point at, in an installation from a wheel as in a clone.

Console blocks of the pages for operators are run, line by line, beside a broker.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import kafka
import pytest
import typer

from mpbroker.cli import pages
from mpbroker.cli.errors import CliError
from mpbroker.cli.main import app
from mpbroker.client.config import _NAMES
from mpbroker.config.broker import BROKER_KEYS
from mpbroker.config.known import ALIASES, HANDLED
from mpbroker.config.resource_config import GROUP_KEYS
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.storage.names import META_PROPERTIES
from mpbroker.testing import Broker
from tests.support.page_shell import Shell, pattern, shell, steps

ROOT = Path(__file__).parents[2]
PACKAGES = ("mpbroker", "shm", "spark_integration", "pyspark_mpbroker")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


# ---- links


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page, and those that it sets itself."""
    text = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = (re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings)
    return frozenset({*named, *re.findall(r'<a id="([^"]+)">', text)})


def dead_links(page: Path, text: str) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text()) == []


# ---- commands


def typed(text: str) -> Iterator[str]:
    """Every call of `mpbroker` in the blocks and the code of a page."""
    text = re.sub(r"\\\n *", "", text)
    blocks = "".join(FENCED.findall(text)).splitlines()
    lines = re.findall(r"^    +(.*)$", text, re.MULTILINE)
    for code in [*blocks, *lines, *re.findall(r"`([^`\n]+)`", FENCED.sub("", text))]:
        for part in re.split(r"\s[|&]\s|&&|;|\$\(", code.strip().removeprefix("$ ")):
            if part.strip().startswith("mpbroker "):
                yield part.strip()


def words(call: str) -> list[str]:
    try:
        return shlex.split(call, comments=True)[1:]
    except ValueError:  # prose with an apostrophe
        return []


@cache
def whole() -> Any:
    """The command with all below it. Typer brings its own copy of click's classes."""
    return typer.main.get_command(app)


def wrong_with(call: str) -> str | None:
    """What the command's own parser knows nothing of; nothing for what is no call but prose."""
    command, rest = whole(), words(call)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return None  # what follows is another command
        if word.startswith("-") and word not in ("-", "-h", "--help"):
            known = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if name not in known:
                return f"{command.name} has no {name}"
            if not known[name].is_flag and name == word and rest:
                rest.pop(0)
        elif hasattr(command, "commands"):
            inner = command.commands.get(word)
            if inner is None:
                return f"{command.name} has no command {word}" if re.fullmatch("[a-z][a-z-]+", word) else None
            command = inner
        elif command.name == "docs" and re.fullmatch(r"[a-z-]+(#[\w-]+)?", word):
            return wrong_with_page(word)
    return None


def wrong_with_page(name: str) -> str | None:
    """Return the error of `mpbroker docs NAME` for a missing page or heading."""
    try:
        page, _, anchor = name.partition("#")
        found = pages.find(page)
        if anchor:
            pages.section(found.path.read_text(), anchor, page)
    except CliError as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    found = {call: wrong for call in typed(page.read_text()) if (wrong := wrong_with(call))}
    assert found == {}


# ---- settings


def settings_of_clients() -> set[str]:
    keys = {*kafka.KafkaProducer.DEFAULT_CONFIG, *kafka.KafkaConsumer.DEFAULT_CONFIG}
    return {str(key).replace("_", ".") for key in keys}


FILES = re.compile(
    r".*\.(properties|json|service|socket|log|pem|so\.1)|mpbroker\.(journal|durable|dirs|spark.*)"
)
OTHERS = re.compile(
    r"(vm|fs)\..*|partition\.metadata|mpbroker\.coordinator\.groups|log\.dir|kafka\.bootstrap\.servers"
)
# Of clients that kafka-python does not have.
MORE_OF_CLIENTS = {
    *("max.request.size", "group.protocol", "ssl.truststore.location", "ssl.ca.location"),
    "socket.connection.setup.timeout.ms",
    # Of a registry.
    *("basic.auth.user.info", "bearer.auth.token"),
}


@pytest.mark.parametrize("name", ["TUNING", "TROUBLESHOOTING", "CONTAINERS", "FAQ"])
def test_settings_exist(name: str) -> None:
    known = {*BROKER_KEYS, *ALIASES, *TOPIC_KEYS, *GROUP_KEYS, *settings_of_clients(), *MORE_OF_CLIENTS}
    text = FENCED.sub("", (ROOT / "docs" / f"{name}.md").read_text())
    named = {one for one, _ in re.findall(r"`([a-z]+(?:\.[a-z_1]+)+)(=[^`]*)?`", text)}
    unknown = {one for one in named - known if not FILES.fullmatch(one) and not OTHERS.fullmatch(one)}
    assert unknown == set()


# ---- messages


def text_of(node: ast.AST) -> str:
    """The text of a string in the code, with ellipses for what is filled in; empty for all else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def strings() -> tuple[str, ...]:
    """All strings of the code but docstrings; what is filled in is an ellipsis."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [text for node in nodes if id(node) not in docstrings and (text := text_of(node))]
    return tuple(found)


@cache
def literals() -> str:
    """All strings of the code, a line each."""
    found = strings()
    native = [path.read_text() for path in (ROOT / "mpbroker").rglob("*.pyx")]
    system = [os.strerror(number) for number in range(1, 50)]
    return "\n".join(re.sub(r"%[-.\d]*[sdf]", "…", one) for one in (*found, *native, *system))


def pieces(message: str) -> list[str]:
    parts = message.replace(META_PROPERTIES, "…").split("…")
    return [piece for part in parts if (piece := part.strip(" :;,.()?"))]


@cache
def quoted() -> list[list[str]]:
    """The messages that the page quotes, each in the pieces between its ellipses."""
    text = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
    tables = "\n".join(re.findall(r"<!-- messages -->\n(.*?)<!-- end", text, re.DOTALL))
    rows = [line.split(" | ")[0] for line in tables.splitlines() if line.startswith("| `")]
    return [pieces(message) for row in rows for message in re.findall(r"`([^`]+)`", row)]


def test_messages_are_those_of_the_code() -> None:
    assert len(quoted()) > 40
    assert [piece for one in quoted() for piece in one if piece not in literals()] == []


# Other texts that people meet.
TEXTS = (
    *("mpbroker/console/static/*.js", "mpbroker/console/static/*.html", "mpbroker/**/*.pyx", "shm/*.pyx"),
    *("ops/prometheus/*.yml", "ops/grafana/*.json", "ops/systemd/*"),
    *("spark_integration/jvm/java/**/*.java", "ops/demo/run.sh"),
)
# Verbs and the like, with which a sentence goes on after a name.
PROSE = {
    *("adds", "and", "as", "belongs", "by", "from", "goes", "has", "knows", "lists", "may", "message", "on"),
    *("or", "sets", "where", "whose", "with", "wrote"),
}


def helps(command: Any) -> Iterator[str]:
    """Yield the help texts of a command and its subcommands."""
    yield from (command.help or "", *(getattr(one, "help", None) or "" for one in command.params))
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner)


def written() -> tuple[str, ...]:
    files = (path for pattern in TEXTS for path in sorted(ROOT.glob(pattern)))
    return (*strings(), *(path.read_text() for path in files))


@cache
def told() -> tuple[str, ...]:
    return (*written(), *helps(whole()))


def test_commands_and_pages_that_messages_name_exist() -> None:
    clause = r"\bmpbroker [a-z-]+(?:(?!mpbroker )[^,;()\n\"'`.:]|[.:](?=\w))*"
    said = [call for text in told() for call in re.findall(clause, text)]
    calls = {" ".join(takewhile(lambda word: word not in PROSE, call.split())) for call in said}
    assert len(calls) > 60
    assert {call: wrong for call in calls if (wrong := wrong_with(call))} == {}


def test_messages_name_no_file_that_a_wheel_lacks() -> None:
    """A wheel has the pages, by `mpbroker docs`; targets of make are told as those of a clone."""
    assert [text for text in written() if " " in text and re.search(r"\bdocs/|\b[A-Z]{3,}\.md\b", text)] == []
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {one for text in told() for one in re.findall(r"\bmake ((?:setup|dist|test)[a-z-]*)\b", text)}
    assert named
    assert named - targets == set()


# Of the system, of Spark and Java, of Kafka alone, parts of names, and what is no setting.
OF_OTHERS = re.compile(
    r"(net|spark|org\.apache)\..*|controller\.quorum\.voters|metadata\.log\.dir|"
    r"compression\.enabled|interceptor\.classes|partitioner\.class|"
    r"(interval\.ms|listener\.name|directory\.id|member\.id)|limits\.conf|store\.p12|e\.g|"
    r"(b|df|mpbroker|pyspark|sys|task)\..*"
)


def test_settings_that_messages_name_exist() -> None:
    of_ours = {*BROKER_KEYS, *ALIASES, *TOPIC_KEYS, *GROUP_KEYS, *HANDLED, *_NAMES}
    known = {*of_ours, *settings_of_clients(), *MORE_OF_CLIENTS}
    named = {
        one.removeprefix("kafka.")
        for text in strings()
        if " " in text
        for one in re.findall(r"(?<![\w./@-])([a-z]+(?:\.[a-z_0-9]+)+)(?![\w/(-])", text)
    }
    assert len(named & known) > 80
    others = {one for pattern in (FILES, OTHERS, OF_OTHERS) for one in named if pattern.fullmatch(one)}
    assert named - known - others == set()


# What refuses a start is raised here.
OF_A_START = (
    *("startup/activation.py", "startup/foreign_metadata.py", "startup/runtime_dir.py"),
    *("startup/sockets.py", "supervisor/tree.py", "log/manager/log_manager.py"),
    *("supervisor/claim.py", "supervisor/main.py", "supervisor/starting.py"),
    *("storage/directory_layout.py", "storage/directory_lock.py", "log/directories/journal_replay.py"),
    *("log/directories/log_directory.py", "coordinator/metadata_controller.py", "../shm/region.py"),
)
ERRORS = ("FatalError", "BrokerStops", "RegionUnavailable", "_refusal")
# Shorter pieces would be in any message.
TELLING = 11
NOT_OF_A_START = re.compile(
    r"stopped while|second stop|.*(is under way|starting or stopping)|cannot open …|log.dirs: …\. Nothing"
)


def refusals() -> Iterator[str]:
    for name in OF_A_START:
        for node in ast.walk(ast.parse((ROOT / "mpbroker" / name).read_text())):
            raised = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if isinstance(node, ast.Call) and raised in ERRORS:
                yield from filter(None, map(text_of, node.args))


def test_each_refusal_of_a_start_is_on_the_page() -> None:
    told = [one for one in refusals() if not NOT_OF_A_START.match(one)]
    assert len(told) > 30
    telling = [piece for one in quoted() for piece in one if len(piece) >= TELLING]
    assert [one for one in told if not any(piece in one for piece in telling)] == []


# ---- the commands, run


def run(sh: Shell, page: str, port: str) -> None:
    for step in steps((ROOT / "docs" / page).read_text()):
        said = sh.run(f"{step.command}\nended=$?").replace(port, "9092")
        printed, wanted = (re.sub(" +", " ", one) for one in (said, step.printed))
        assert re.fullmatch(pattern(wanted), printed, re.DOTALL), f"{step}\n{printed}"
        # What doctor says of the host is the host's affair.
        failed = sh.run("echo $ended").strip() != "0" and not step.command.startswith("mpbroker doctor")
        assert not failed, f"{step.command}\n{printed}"


@pytest.mark.process
def test_the_pages_can_be_typed_from(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path / "data") as broker, shell(tmp_path) as sh:
        address = broker.bootstrap_servers
        sh.run(f"export MPBROKER_BOOTSTRAP_SERVER={address}")
        sh.run("mpbroker topic create orders --partitions 1 && echo first | mpbroker produce orders")
        sh.run("mpbroker consume orders --group billing -o beginning -n 1")
        for page in ("TROUBLESHOOTING.md", "TUNING.md"):
            run(sh, page, address.rpartition(":")[2])
