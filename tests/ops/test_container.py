"""The Containerfile keeps to the rules of its linter, and names what is there.

`make test-dist` runs its steps (container_files).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpbroker.cli.main import app
from mpbroker.config.load import load
from tests.support.empty_root import Containerfile
from tests.support.programs import ran

ROOT = Path(__file__).parents[2]
FILE = ROOT / "Containerfile"


@pytest.mark.process
def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = ran([hadolint, FILE])
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_as_an_ordinary_user_and_gets_signals() -> None:
    found = Containerfile.parse(FILE.read_text())
    assert found.last("USER") == "9092:9092"
    assert found.last("STOPSIGNAL") == "SIGTERM"
    # In the form of words, without a shell that would be process 1.
    assert found.words("ENTRYPOINT")[1:3] == ["serve", "--config"]
    assert found.words("HEALTHCHECK")[1:3] == ["ctl", "ready"]
    assert found.words("VOLUME") == ["/var/lib/mpbroker"]
    assert app.info.name == Path(found.words("ENTRYPOINT")[0]).name


def test_its_settings_are_settings() -> None:
    loaded = load(ROOT / "ops/container/server.properties")
    assert loaded.warnings == ()
    assert f"{loaded.config.listeners[0]}" == "PLAINTEXT://0.0.0.0:9092"


def test_what_is_sent_to_the_builder_is_what_it_copies() -> None:
    found = Containerfile.parse(FILE.read_text())
    copied = {rest.split()[0] for name, rest in found.instructions if name == "COPY"}
    kept = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()[1:]]
    assert all(any(path.startswith(f"{one}/") for one in kept) for path in copied)
