"""The process of `mpbroker serve --standby`, which is the broker once the standby owns the ledger.

A child follows (`runner`). This process waits for it, and imports what a broker needs meanwhile. So the
broker starts at once when the child has taken over. This process never reaches the object store: the
library's threads would not survive the forks of a broker.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import titles
from mpbroker.standby.runner import EXIT_FAILED, follow
from mpbroker.supervisor import logs, roles
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.status import BECAME
from shm.linux import set_parent_death_signal

# The child's status when this process is to be the broker.
_OWNS: Final = 100
_LONGEST_NOTICE: Final = 4096

log = logging.getLogger("mpbroker.supervisor")


def run(
    config: BrokerConfig, words: Sequence[str], log_format: logs.LogFormat, *, read_only: bool = False
) -> int | None:
    """Be the standby of a ledger's owner. Return the exit status, None to become the owner's broker.

    `words` are those of the command line that starts a broker with this configuration. One that is
    `read_only` lets consumers read, and never becomes the owner's broker.
    """
    logs.configure(logs.wanted_level(os.environ), log_format)
    titles.name_broker(config)
    titles.entitle("supervisor")
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        log.error(
            "--standby takes no sockets from the service manager: its face and the broker that it becomes "
            "bind their addresses one after the other. Disable the .socket unit"
        )
        return EXIT_MISCONFIGURED
    notifier = Notifier()
    signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    child = os.fork()
    if child == 0:
        mine.close()
        notifier.relay = theirs
        _follow(config, words, notifier, read_only=read_only)
    theirs.close()
    import_module("mpbroker.supervisor.main")
    roles.prepare(has_exporter=bool(config.http_listener), has_tier=config.remote_log_storage_system_enable)
    code = _await(child, signals, mine, notifier)
    signal.set_wakeup_fd(-1)
    for fd in (signals, wakeup, mine.detach()):
        os.close(fd)
    if code != _OWNS:
        return code if code >= 0 else EXIT_FAILED
    notifier.give_back()
    os.environ[BECAME] = str(time.clock_gettime(time.CLOCK_BOOTTIME))
    return None


def _follow(config: BrokerConfig, words: Sequence[str], notifier: Notifier, *, read_only: bool) -> NoReturn:
    """Follow, in the child, and exit."""
    code = EXIT_FAILED
    try:
        set_parent_death_signal(signal.SIGTERM)
        gc.enable()
        status = follow(config, words, notifier, read_only=read_only)
        code = _OWNS if status is None else status
    except BaseException:
        log.exception("the standby has failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _await(child: int, signals: int, notices: socket.socket, notifier: Notifier) -> int:
    """Wait for the child's end; return its status. Pass on signals to it, and notices from it."""
    pidfd = os.pidfd_open(child)
    poll = select.poll()
    for fd in (pidfd, signals, notices.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if signals in ready:
            for number in os.read(signals, 64):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        if notices.fileno() in ready:
            # The child may just have ended.
            with contextlib.suppress(OSError):
                notifier.send(*notices.recv(_LONGEST_NOTICE, socket.MSG_DONTWAIT).decode().split("\n"))
        if pidfd in ready:
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code < 0:
                log.error("the standby was killed by %s", signal.Signals(-code).name)
            return code
