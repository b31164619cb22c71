"""The progress of a long command, on standard error if that is a terminal: standard output is for reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

BAR_CHARACTERS = 20


@contextmanager
def progress_bar(total: int, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """Show a progress bar. Yields a function that takes `advance`, `completed`, `total`, `description`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(file=sys.stderr)
    # The description gets the width that the others leave: a partition's name can be longer than the line.
    # Nothing in it is markup.
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    description = TextColumn("{task.description}", markup=False, table_column=rest)
    with Progress(
        BarColumn(BAR_CHARACTERS),
        *columns,
        description,
        console=console,
        expand=True,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield partial(progress.update, progress.add_task("", total=total))
