"""Reports the progress of recovery at a start: bars on a terminal, lines in a log, rows in a status.

In its first second (SILENT_S) a start reports nothing.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.health import recoveries_under_way
from mpbroker.ipc.progress import Progress
from mpbroker.ipc.topology import SharedMemory

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

SILENT_S = 1.0
SAY_EVERY_S = 5.0
DRAW_EVERY_S = 0.2
log = logging.getLogger("mpbroker.supervisor")


def rows(config: BrokerConfig, memory: SharedMemory) -> list[dict[str, Any]]:
    """Return a row for each log directory under recovery, as `ctl status` shows it."""
    return [
        {
            "log_dir": config.log_dirs[one.log_dir],
            "partitions_done": one.partitions_done,
            "partitions_left": one.partitions_left,
            "bytes_done": one.bytes_done,
            "bytes_left": one.bytes_left,
            "seconds_left": round(one.seconds_left, 1) if one.seconds_left is not None else None,
        }
        for one in recoveries_under_way(config, memory)
    ]


class Reporter:
    """Reports progress on stderr. Call `poll` often while the broker starts, and `end` after the start."""

    def __init__(self, config: BrokerConfig, memory: SharedMemory) -> None:
        self._config = config
        self._memory = memory
        self._next_s = time.monotonic() + SILENT_S
        self._bars: Bars | None = None
        self._tasks: dict[int, TaskID] = {}
        self.text = ""  # one line about all directories, as of the last poll that found a recovery

    def poll(self) -> None:
        now = time.monotonic()
        if now < self._next_s:
            return
        going = recoveries_under_way(self._config, self._memory)
        if sys.stderr.isatty():
            self._next_s = now + DRAW_EVERY_S
            self._draw(going)
            return
        self._next_s = now + SAY_EVERY_S
        lines = [f"{self._config.log_dirs[one.log_dir]}: {text_of(one)}" for one in going]
        for line in lines:
            log.info("recovering %s", line)
        self.text = f"Recovering {'; '.join(lines)}" if lines else self.text

    def _draw(self, going: list[Progress]) -> None:
        if self._bars is None:
            if not going:
                return
            self._bars = _new_bars()
            self._bars.start()
        for one in going:
            if one.log_dir not in self._tasks:
                self._tasks[one.log_dir] = self._bars.add_task(self._config.log_dirs[one.log_dir], text="")
            total, done = (one.bytes, one.bytes_done) if one.bytes else (one.partitions, one.partitions_done)
            task = self._tasks[one.log_dir]
            self._bars.update(task, total=total, completed=min(done, total), text=text_of(one))
        self._bars.refresh()

    def end(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def text_of(one: Progress) -> str:
    left = f"{one.partitions_done} of {one.partitions} partitions"
    if one.bytes:
        left += f", {one.bytes_done >> 20} of {one.bytes >> 20} MiB checked"
    if one.seconds_left is not None:
        left += f", about {one.seconds_left:.0f} s left"
    return left


def _new_bars() -> Bars:
    """Return progress bars that only `refresh` draws.

    By default a thread draws the bars, and the supervisor must not fork while it has threads.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("recovering {task.description}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
