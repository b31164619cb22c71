"""The `mpbroker` command in this process: what it prints, and its exit code."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from confluent_kafka import Producer

from mpbroker.cli.main import run
from tests.support.programs import Piped

ROOT = Path(__file__).parents[2]


class Said(NamedTuple):
    """What a command has printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def table(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.out.splitlines()]


class OwnCli:
    """Commands to one broker, as a user types them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *words: str, code: int = 0, stdin: bytes = b"") -> Said:
        """Run a command that must end with this code, and never with a traceback."""
        out, err = io.BytesIO(), io.StringIO()
        stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
        with (
            tempfile.TemporaryFile("w+") as typed,
            patch.dict(os.environ, {"MPBROKER_BOOTSTRAP_SERVER": self.bootstrap}),
            patch("sys.stdin", typed),
            redirect_stdout(stdout),
            redirect_stderr(err),
        ):
            typed.buffer.write(stdin)
            typed.seek(0)
            ended = run(words)
        said = Said(out.getvalue().decode(), err.getvalue())
        assert ended == code, f"{' '.join(words)} ended with {ended}\n{said.out}{said.err}"
        return said

    def refused(self, *words: str, says: str, code: int = 2) -> None:
        """Check that a command ends with this code and one line, in which this text is."""
        err = self(*words, code=code).err
        assert says in err
        assert err.count("\n") == 1

    @contextmanager
    def running(self, *words: str) -> Iterator[Piped]:
        """A command in a process of its own."""
        environment = {**os.environ, "MPBROKER_BOOTSTRAP_SERVER": self.bootstrap, "PYTHONPATH": str(ROOT)}
        # What a shell starts in the background ignores Ctrl-C, and so would whatever these tests start.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        pipe = subprocess.PIPE
        with Piped(
            [sys.executable, "-m", "mpbroker", *words], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        ) as process:
            signal.signal(signal.SIGINT, before)
            try:
                yield process
            finally:
                process.kill()

    def begun(self, name: str, topic: str, partitions: Sequence[int] = (0,)) -> Producer:
        """Return a producer with an open transaction that has a record in each partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name, "log_level": 0})
        producer.init_transactions()
        producer.begin_transaction()
        for partition in partitions:
            producer.produce(topic, b"x", partition=partition)
        producer.flush()
        return producer

    def committed(self, group: str) -> dict[int, int]:
        """The offsets of a group by partition."""
        (document,) = self("group", "describe", group, "--json").json
        return {row["partition"]: row["committed"] for row in document["partitions"]}

    def produce(self, topic: str, lines: Sequence[str], *words: str, code: int = 0) -> Said:
        return self.feed(topic, "".join(f"{line}\n" for line in lines).encode(), *words, code=code)

    def feed(self, topic: str, data: bytes, *words: str, code: int = 0) -> Said:
        """Produce what a file has that is standard input."""
        return self("produce", topic, *words, code=code, stdin=data)
