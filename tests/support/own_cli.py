"""The `mpbroker` command in this process: what it prints, and its exit code."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from mpbroker.cli.main import run


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

    def produce(self, topic: str, lines: Sequence[str], *words: str, code: int = 0) -> Said:
        return self.feed(topic, "".join(f"{line}\n" for line in lines).encode(), *words, code=code)

    def feed(self, topic: str, data: bytes, *words: str, code: int = 0) -> Said:
        """Produce what a file has that is standard input."""
        return self("produce", topic, *words, code=code, stdin=data)
