"""sd_notify(3): the broker's states, sent to systemd's datagram socket, which NOTIFY_SOCKET names.

With WatchdogSec= systemd expects pings, and restarts a service that sends none (sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import logging
import os
import socket
import time

# A service manager that does not read must not keep the supervisor from its children.
PATIENCE_S = 1.0
# The time that the service manager is asked for, and the interval between such requests.
EXTEND_BY_S, EXTEND_EVERY_S = 60.0, 15.0

log = logging.getLogger("mpbroker.supervisor")


class Notifier:
    """Sends states to systemd, or nothing if systemd did not start this process.

    It removes systemd's environment variables, so that no child can send states for the broker.
    """

    def __init__(self) -> None:
        self.address = os.environ.pop("NOTIFY_SOCKET", "")
        interval_us, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        is_ours = interval_us.isdigit() and pid in ("", str(os.getpid()))
        # systemd's advice: ping twice in the time after which it acts.
        self.ping_every_s = int(interval_us) / 2_000_000 if is_ours else 0.0
        self._ping_at = float("inf")
        self._extend_at = 0.0
        # In a child: the socket to its parent, the process that systemd listens to, which sends states on.
        self.relay: socket.socket | None = None

    def send(self, *assignments: str) -> None:
        if not self.address:
            return
        if self.relay is not None:
            self.relay.send("\n".join(assignments).encode())
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(PATIENCE_S)
            try:
                sock.sendto("\n".join(assignments).encode(), address)
            except OSError as error:
                # Clients are served even if the service manager cannot be notified.
                log.warning(
                    "cannot send %s to the service manager (NOTIFY_SOCKET=%s): %s",
                    assignments[0],
                    self.address,
                    error,
                )

    def give_back(self) -> None:
        """Leave systemd's variables to the program that this process becomes."""
        if self.address:
            os.environ["NOTIFY_SOCKET"] = self.address
        if self.ping_every_s:
            os.environ["WATCHDOG_USEC"] = str(round(self.ping_every_s * 2_000_000))

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that a reload has begun; `ready` reports its end (Type=notify-reload)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=Reloading")

    def begin_watchdog(self) -> None:
        """Begin to ping systemd, if it expects pings."""
        if self.ping_every_s:
            self._ping_at = time.monotonic()

    def is_ping_due(self) -> bool:
        return time.monotonic() >= self._ping_at

    def ping(self) -> None:
        self._ping_at = time.monotonic() + self.ping_every_s
        self.send("WATCHDOG=1")

    def status(self, status: str) -> None:
        self.send(f"STATUS={status}")

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=Stopping")

    def extend(self) -> None:
        """Request more time for a long start or stop, once per EXTEND_EVERY_S. Call it often."""
        if time.monotonic() >= self._extend_at:
            self._extend_at = time.monotonic() + EXTEND_EVERY_S
            self.send(f"EXTEND_TIMEOUT_USEC={round(EXTEND_BY_S * 1_000_000)}")
