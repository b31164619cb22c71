"""Short and long forms of soaks: tests that find more the longer they run.

`make test` runs the short forms and ends by saying what it left out; `make test-all` (pytest --long) runs the
long ones. A module says what they are:

    CUTS = pick("power cuts", short=40, long=150)

    @each("seed", short=[1], long=range(1, 21))
    def test_nothing_is_lost(seed: int) -> None: ...

    @long_only("downloads another PySpark")
    def test_checkpoints() -> None: ...

The items of a module that picks, and those of the two decorators, are marked `soak`.

What repeats the same with other examples, or with kills at other moments, says how often; the short form does
a fifth of it:

    @settings(max_examples=rounds(200), deadline=None)
    for kill in range(rounds(100)): ...
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

# A test of a long form may take so long.
LONG_TIMEOUT_S = 3 * 3600
LEFT_OUT_SHOWN = 40

Amount = TypeVar("Amount", int, str)
_is_long = False
# By the name of a module: what its short form leaves out.
_picked: dict[str, list[str]] = defaultdict(list)


def pick(what: str, *, short: Amount, long: Amount) -> Amount:
    """The amount of this run, for a module to keep in a constant."""
    if not _is_long:
        caller = sys._getframe(1).f_globals["__name__"]
        _picked[caller].append(
            f"{short:,} of {long:,} {what}" if isinstance(short, int) else f"{what} {short}, not {long}"
        )
    return long if _is_long else short


def rounds(count: int) -> int:
    """Return `count`, or that part of it which hypothesis's profile has of its usual number of examples."""
    return max(1, count * settings.default.max_examples // settings.get_profile("default").max_examples)


def each(name: str, *, short: Sequence[Any], long: Sequence[Any]) -> Callable[..., Any]:
    """Parametrize a test, as pytest.mark.parametrize does."""
    left_out = f"{len(short)} of {len(long)} values of {name}"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        marked = pytest.mark.parametrize(name, long if _is_long else short)(test)
        return pytest.mark.soak(left_out=left_out)(marked)

    return decorate


def long_only(reason: str) -> pytest.MarkDecorator:
    """Mark a test that has no short form."""
    return pytest.mark.soak(left_out=reason, long_only=True)


# ---- hooks; tests/conftest.py has them from here ----


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of soaks, too (make test-all)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    global _is_long
    _is_long = bool(config.getoption("--long"))
    if _is_long and config.getoption("timeout", None) is None:
        config.option.timeout = LONG_TIMEOUT_S


def is_long() -> bool:
    return _is_long


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the soaks before `-m` chooses among tests, and take out those that only the long form has."""
    _choose(config, items)
    yield
    if config.getoption("markexpr", "") and LEFT_OUT in config.stash:
        # Of files of which nothing runs at all there is nothing to say.
        chosen = {item.nodeid.split("::")[0] for item in items}
        left_out = config.stash[LEFT_OUT]
        config.stash[LEFT_OUT] = {path: left_out[path] for path in left_out if path in chosen}


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    kept, dropped = [], []
    for item in items:
        module = getattr(item, "module", None)
        picked = _picked.get(module.__name__, []) if module is not None else []
        if picked:
            item.add_marker("soak")
        soaks = [mark.kwargs for mark in item.iter_markers("soak")]
        is_dropped = not _is_long and any(soak.get("long_only") for soak in soaks)
        (dropped if is_dropped else kept).append(item)
        path = item.nodeid.split("::")[0]
        reasons = [soak["left_out"] for soak in soaks if "left_out" in soak]
        for reason in {*picked, *reasons}:
            left_out[path][reason] += 1
    items[:] = kept
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    if not _is_long:
        config.stash[LEFT_OUT] = {path: sorted(reasons) for path, reasons in left_out.items()}


LEFT_OUT = pytest.StashKey[dict[str, list[str]]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this worker: it collects nothing itself."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001 - the hook's
    told = getattr(node, "workeroutput", {}).get("left_out")
    if told:
        node.config.stash[LEFT_OUT] = told


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, {})
    if not left_out:
        return
    terminalreporter.section("in short form; make test-all runs all of it, pytest --long PATH one of them")
    for path, reasons in sorted(left_out.items())[:LEFT_OUT_SHOWN]:
        terminalreporter.line(f"{path}: {'; '.join(reasons)}")
    if len(left_out) > LEFT_OUT_SHOWN:
        terminalreporter.line(f"and of {len(left_out) - LEFT_OUT_SHOWN} more files")
