"""The load generator notices everything that is wrong with a response, and sends and counts right."""

import contextlib
import json
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.bench import frames, scenarios
from ops.bench.frames import CORRELATION_ID
from tests.support.programs import ran
from tests.support.threaded_server import ThreadedServer

pytestmark = pytest.mark.process

Answer = Callable[[bytes], bytes]

OK, BROKEN, ERRORS = 0, 1, 2
FIRST_PERCENTILE_US = 1.0
RUNS_S = (0.2, 2, 20)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def answer_with(error_code: int, correlation_id: int = CORRELATION_ID, padding: int = 0) -> Answer:
    payload = struct.pack(">ih", correlation_id, error_code) + b"." * padding
    return lambda _: framed(payload)


class Server(ThreadedServer):
    """Answers each request with what `answer` makes of it; an empty answer closes the connection."""

    answer: Answer = staticmethod(answer_with(0))

    def talk(self, connection: socket.socket) -> None:
        """Until the generator hangs up, which may be in the middle of a request."""
        with contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while len(header := stream.read(4)) == 4:
                size = int.from_bytes(header, "big")
                payload = stream.read(size)
                if len(payload) < size or not (answer := self.answer(payload)):
                    return
                connection.sendall(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def generator() -> None:
    scenarios.build_generator()


def load(
    server: Server,
    directory: Path,
    *options: str,
    enough: Callable[[], bool] = lambda: True,
) -> subprocess.CompletedProcess[str]:
    """A short run; a longer one if this machine was too busy for a response in it, or for enough of them."""
    path = directory / "request"
    path.write_bytes(frames.api_versions().frame)
    command = [str(scenarios.GENERATOR), "--port", str(server.port), "--request", str(path), "--json"]
    for seconds in RUNS_S:
        done = ran([*command, "--seconds", str(seconds), "--error-at", "8", *options])
        if "no response within" not in done.stderr and enough():
            return done
    pytest.fail(f"nothing comes in {RUNS_S[-1]} s: {done.stderr}")


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    measuring, line = done.stdout.splitlines()
    assert measuring == "measuring"
    parsed: dict[str, float] = json.loads(line)
    return parsed


def test_good_responses_are_counted(server: Server, tmp_path: Path) -> None:
    done = load(server, tmp_path, "--connections", "3", "--warmup", "0.05")
    assert done.returncode == OK, done.stderr
    result = figures(done)
    assert result["connections"] == 3
    assert result["requests"] > 0
    assert result["errors"] == 0
    assert result["rate"] == pytest.approx(result["requests"] / result["seconds"], rel=0.01)
    assert FIRST_PERCENTILE_US < result["p50_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"]


def test_one_error_among_many_is_found(server: Server, tmp_path: Path) -> None:
    seen = 0

    def answer(_: bytes) -> bytes:
        nonlocal seen
        seen += 1
        return answer_with(3 if seen == 5 else 0)(b"")

    server.answer = answer
    done = load(server, tmp_path, enough=lambda: seen >= 5)
    assert done.returncode == ERRORS
    assert (figures(done)["errors"], figures(done)["error_code"]) == (1, 3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answer_with(0, correlation_id=CORRELATION_ID + 1), "correlation id 8, expected 7"),
        (lambda _: b"", "closed a connection"),
        (lambda _: framed(struct.pack(">i", CORRELATION_ID)), "no error code"),
        (lambda _: framed(struct.pack(">ih", CORRELATION_ID, 0)) + b"more", "bytes came where the response"),
    ],
    ids=["correlation id", "closed", "short", "long"],
)
def test_a_wrong_response_breaks_the_run_off(
    server: Server, tmp_path: Path, answer: Answer, said: str
) -> None:
    server.answer = answer
    done = load(server, tmp_path)
    assert done.returncode == BROKEN
    assert said in done.stderr


def test_a_big_response_is_counted_whole(server: Server, tmp_path: Path) -> None:
    padding = 3_000_000
    server.answer = answer_with(0, padding=padding)
    done = load(server, tmp_path, "--min-response", str(padding))
    assert done.returncode == OK, done.stderr
    result = figures(done)
    whole = result["requests"] * (padding + 10) / result["seconds"] / 1e6
    assert result["in_mb_s"] == pytest.approx(whole, abs=(padding + 10) / result["seconds"] / 1e6)


def test_a_response_that_is_too_small_is_an_error(server: Server, tmp_path: Path) -> None:
    done = load(server, tmp_path, "--min-response", "1000")
    assert done.returncode == ERRORS
    assert "expected at least 1000" in done.stderr
