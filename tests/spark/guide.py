"""Runs what a Markdown page tells its readers to run: fenced blocks of Python and bash, in order.

A block of text directly behind one that runs is what it prints. A comment in front of a block, which readers
of the page do not see, leaves it out and says why: `<!-- skip: reason -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
# A comment of a block that looks like a heading is none.
_HEADING_OR_BLOCK = re.compile(
    r"^##+ (?P<heading>[^\n]+)$"
    r"|^(?:<!-- skip: (?P<skip>.+?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("python", "bash")
SHOWN = "text"


class GuideError(AssertionError):
    """A block failed, or printed something else; the message begins with the page and the line."""


@dataclass(frozen=True)
class Block:
    """A fenced block that runs.

    `section` is the heading above it, `line` that of its fence, `prints` what the page shows behind it.
    """

    section: str
    line: int
    language: str
    code: str
    skip: str | None
    prints: str | None


def blocks(page: str) -> list[Block]:
    """All blocks that a reader runs. Raises GuideError for a fence of another language."""
    found: list[Block] = []
    section, end_of_last = "", -1
    for match in _HEADING_OR_BLOCK.finditer(page):
        if match["heading"]:
            section = match["heading"]
            continue
        language, line = match["language"], page.count("\n", 0, match.start("language")) + 1
        if language == SHOWN:
            if match.start() == end_of_last + 1 and found:
                last = found.pop()
                found.append(replace(last, prints=match["code"]))
        elif language in RUN:
            found.append(Block(section, line, language, match["code"], match["skip"], None))
            end_of_last = match.end()
        else:
            raise GuideError(
                f"line {line}: a block of {language}, only {', '.join(RUN)} and {SHOWN} are known"
            )
    return found


def sections(page: str) -> list[str]:
    """The headings that have something to run."""
    return list(dict.fromkeys(block.section for block in blocks(page) if block.skip is None))


@dataclass
class Guide:
    """Runs the blocks of a page in one directory and one namespace.

    `places`: words of the page, and what they are here.
    """

    page: Path
    directory: Path
    places: Mapping[str, str]
    variables: Mapping[str, str]

    def __post_init__(self) -> None:
        # Spark's workers get functions of this module by their code, as of a notebook.
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self._left = [block for block in blocks(self.page.read_text()) if block.skip is None]

    def run(self, section: str) -> int:
        """Run what has not been run yet, to the end of the section. Returns how many blocks the section had.

        Raises GuideError. A block that failed is not run again.
        """
        ran = 0
        while any(block.section == section for block in self._left):
            block = self._left.pop(0)
            self._run(block)
            ran += block.section == section
        return ran

    def _run(self, block: Block) -> None:
        where = f"{self.page.name}, line {block.line}"
        try:
            printed = self._python(block) if block.language == "python" else self._bash(block)
        except Exception as error:
            raise GuideError(f"{where}: {error}") from error
        if block.prints is not None and _stripped(printed) != _stripped(block.prints):
            raise GuideError(f"{where} prints\n{printed}\nnot\n{block.prints}")

    def _here(self, code: str) -> str:
        for name, place in self.places.items():
            code = code.replace(name, place)
        return code

    def _python(self, block: Block) -> str:
        printed = StringIO()
        # Line numbers of a traceback are those of the page.
        code = compile("\n" * block.line + self._here(block.code), "guide", "exec")
        with redirect_stdout(printed):
            exec(code, self.namespace)
        return printed.getvalue()

    def _bash(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(block.code)],
            cwd=self.directory,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise GuideError(f"ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
