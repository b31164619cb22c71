"""The face of a standby: a broker that answers clients, leads nothing, and names the broker that leads.

It is a child process of the standby, which starts it again when it has died. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.mirror import MirrorPointer, write_mirror
from mpbroker.ipc.nodes import Nodes, write_nodes
from mpbroker.storage.directory_layout import Identity, name_log_dirs
from mpbroker.supervisor.status import BECAME
from shm.linux import set_parent_death_signal

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
# The longest time that it gets to close its connections.
STOP_S: Final = 30.0
# Variables that are meant for this process alone.
_NOT_INHERITED: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", BECAME)

log = logging.getLogger("mpbroker.supervisor")


class Face:
    """The child, whose log directory is `directory`. `command` starts a broker with the same settings."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self.directory = directory
        self._command = [*command, "--follow", str(directory)]
        self._process: subprocess.Popen[bytes] | None = None
        self._delay_s = FIRST_DELAY_S
        self._began_s = 0.0
        self._start_at_s = 0.0
        self._is_asked = False
        self._written: tuple[Nodes, MirrorPointer] | None = None

    def prepare(self, config: BrokerConfig, cluster_id: str) -> None:
        """Make the directory anew. Raises OSError, FatalError."""
        self._written = None
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(0o750)
        own = structs.replace(config, log_dirs=(str(self.directory),))
        name_log_dirs(own, Identity(cluster_id, config.node_id))

    def tell(self, nodes: Nodes, mirror: MirrorPointer) -> None:
        """Have clients told of these nodes, and of the topics in the mirror. Raises OSError."""
        if self._written != (nodes, mirror):
            write_nodes(self.directory, nodes)
            write_mirror(self.directory, mirror)
            self._written = nodes, mirror

    def step(self) -> None:
        """Start the child, if it does not run. After it has died wait for a while, longer each time."""
        now_s = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            if now_s - self._began_s > LONGEST_DELAY_S:
                self._delay_s = FIRST_DELAY_S
            log.error(
                "what answers clients while this broker follows has ended (status %d); it starts again in "
                "%.0f s",
                code,
                self._delay_s,
            )
            self._start_at_s, self._delay_s = now_s + self._delay_s, min(self._delay_s * 2, LONGEST_DELAY_S)
        if self._process is None and now_s >= self._start_at_s:
            self._began_s, self._is_asked = now_s, False
            environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
            self._process = subprocess.Popen(
                self._command, env=environment, preexec_fn=lambda: set_parent_death_signal(signal.SIGTERM)
            )

    def ask_to_stop(self) -> None:
        """Have the child stop. Send one signal only: after a second one it would not stop in order."""
        if self._process is not None and not self._is_asked:
            self._is_asked = True
            self._process.terminate()

    def stop(self) -> None:
        """Stop the child, and wait until its ports are free. Idempotent."""
        if self._process is None:
            return
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._process.kill()
        self._process.wait()
        self._process = None


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command that runs `mpbroker` with these words in a process of its own."""
    return [sys.executable, "-m", "mpbroker", *words]
