"""Completion as shells ask for it: bash itself, zsh and fish by the variables that their scripts set."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mpbroker.testing import Broker
from tests.support.own_cli import OwnCli
from tests.support.programs import ran

ROOT = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(command: list[str], **variables: str) -> str:
    environment = {**os.environ, "PATH": PATH, "PYTHONPATH": str(ROOT), **variables}
    done = ran(command, env=environment)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.process
def test_bash() -> None:
    offered = {
        "gro": ["group"],
        "group de": ["describe", "delete", "delete-offsets"],
        "group reset-offsets --to-e": ["--to-earliest"],
        "log-": ["log-dirs"],
        "ctl listener re": ["remove"],
    }
    complete = [
        f"COMP_WORDS=(mpbroker {words}); COMP_CWORD={len(words.split())}\n"
        "_mpbroker_completion mpbroker\n"
        'printf "%s " "${COMPREPLY[@]}"; echo'
        for words in offered
    ]
    script = "\n".join(["source <(mpbroker completion bash)", *complete, "complete -p mpbroker"])
    *found, last = run(["bash", "--norc", "-c", script]).splitlines()
    assert [line.split() for line in found] == list(offered.values())
    assert last == "complete -o default -F _mpbroker_completion mpbroker"


@pytest.mark.process
def test_zsh_and_fish() -> None:
    mpbroker = [sys.executable, "-m", "mpbroker"]
    typed = {"_TYPER_COMPLETE_ARGS": "mpbroker group reset"}
    answer = run(mpbroker, _MPBROKER_COMPLETE="complete_zsh", **typed)
    assert answer.startswith('_arguments \'*: :(("reset-offsets":"Set the committed offsets of groups')
    fish = {"_MPBROKER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert run(mpbroker, **fish, **typed).startswith("reset-offsets\tSet the committed offsets of groups")
    # A quotation that is not closed yet.
    open_quotation = {"_TYPER_COMPLETE_ARGS": "mpbroker group list --state 'Em"}
    run(mpbroker, _MPBROKER_COMPLETE="complete_zsh", **open_quotation)


@pytest.mark.parametrize(
    ("shell", "begins"),
    [
        ("bash", "_mpbroker_completion() {"),
        ("zsh", "#compdef mpbroker"),
        ("fish", "complete --command mpbroker "),
    ],
)
def test_scripts(shell: str, begins: str) -> None:
    assert OwnCli("nobody:1")("completion", shell).out.startswith(begins)


def test_a_shell_that_is_none() -> None:
    said = OwnCli("nobody:1")("completion", "csh", code=2)
    assert said.err == "mpbroker: completion is for bash, zsh, fish, not 'csh'\n"


def test_names_of_topics_groups_and_settings_are_offered(mpbroker_broker: Broker) -> None:
    topic = mpbroker_broker.create_topic("completed-topic")
    where = {"MPBROKER_BOOTSTRAP_SERVER": mpbroker_broker.bootstrap_servers}
    mpbroker = [sys.executable, "-m", "mpbroker"]

    def offered(typed: str, **more: str) -> str:
        return run(mpbroker, _MPBROKER_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed, **more)

    assert topic in offered("mpbroker consume comple", **where)
    assert topic in offered("mpbroker topic delete comple", **where)
    assert "retention.ms" in offered("mpbroker config set retention.m")
    # A broker that does not answer keeps nobody from typing.
    assert topic not in offered("mpbroker consume comple", MPBROKER_BOOTSTRAP_SERVER="127.0.0.1:1")
