"""Decides at each look whether the broker runs or its directories are at rest, and says what has changed.

A broker that is killed, stopped or started while somebody watches is seen at the next look.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.cli.errors import CliError
from mpbroker.cli.host.local_broker import LocalBroker, bootstrap_of_environment, by_log_dirs
from mpbroker.cli.top.groups import GroupLooks
from mpbroker.config.listeners import reachable
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.observe import at_rest
from mpbroker.observe.at_rest import NotAtRest
from mpbroker.observe.live import LiveBroker
from mpbroker.observe.samples import BrokerSeen, Groups, Health, Sample

AT_REST_EVERY_S: Final = 5.0
"""Directories at rest change seldom, and reading them costs more than shared memory."""


class BrokerFlags(NamedTuple):
    """Which broker to watch: as the flags of `mpbroker top` say.

    `bootstrap` beside `log_dirs` is only where groups are asked for.
    """

    log_dirs: str | None = None
    bootstrap: str | None = None
    command_config: Path | None = None
    port: int | None = None

    @property
    def local(self) -> LocalBroker:
        return LocalBroker(self.log_dirs, self.port, None if self.log_dirs is not None else self.bootstrap)

    @property
    def address(self) -> str | None:
        """The address where groups are asked for, if the flags or the environment name one."""
        if self.bootstrap is not None or self.log_dirs is not None or self.port is not None:
            return self.bootstrap
        return bootstrap_of_environment()


class Watch:
    """Looks at one broker again and again. Its methods are called by one thread."""

    def __init__(self, wanted: BrokerFlags) -> None:
        self._wanted = wanted
        self._live: LiveBroker | None = None
        # Once they are known, a broker that was found by its port is found again without it.
        self._log_dirs = [one.strip() for one in (wanted.log_dirs or "").split(",") if one.strip()]
        self._rest: tuple[float, Sample, Groups] | None = None

    def first(self) -> Sample:
        """Take the first sample. Raises CliError: a broker that was never there is a wrong call."""
        try:
            return self._look_alive()
        except (CliError, ControlError) as error:
            try:
                return self._look_at_rest()
            except (NotAtRest, CliError):
                raise error from None

    def look(self) -> Sample:
        """Take a sample. What cannot be reached is said in the sample."""
        try:
            return self._look_alive()
        except (CliError, ControlError) as error:
            problem = str(error)
        self._live = None
        try:
            return self._look_at_rest()
        except (NotAtRest, CliError, OSError):
            broker = BrokerSeen(Health.UNKNOWN, problem, log_dirs=tuple(self._log_dirs))
            return Sample(time.monotonic_ns(), broker)

    def groups_at_rest(self) -> Groups | None:
        """Return the groups in the files, if the last sample was of directories at rest."""
        return self._rest[2] if self._rest is not None else None

    def _look_alive(self) -> Sample:
        if self._live is None:
            self._live = LiveBroker(self._find())
        sample = self._live.look()
        self._rest = None
        self._log_dirs = list(sample.broker.log_dirs) or self._log_dirs
        return sample

    def _find(self) -> ControlClient:
        return by_log_dirs(",".join(self._log_dirs)) if self._log_dirs else self._wanted.local.control()

    def _look_at_rest(self) -> Sample:
        now_s = time.monotonic()
        if self._rest is None or now_s - self._rest[0] > AT_REST_EVERY_S:
            self._rest = None
            if not self._log_dirs and (self._wanted.port or self._wanted.address):
                raise NotAtRest("a broker that listens nowhere cannot be found: name its --log-dirs")
            sample, groups = at_rest.look(self._log_dirs or ["data"])
            self._rest = (now_s, sample, groups)
        return self._rest[1]


class GroupWatch:
    """Looks at the groups of a running broker; reconnects when its address changes."""

    def __init__(self, wanted: BrokerFlags) -> None:
        self._wanted = wanted
        self._address = ""
        self._looks: GroupLooks | None = None

    def look(self, broker: BrokerSeen) -> Groups:
        """Return the groups, or why they are not known. Raises ConfigError for a wrong --command-config."""
        address = self._wanted.address or next((one.partition("://")[2] for one in broker.listeners), "")
        if not address:
            return Groups(time.monotonic_ns(), problem="the broker has no listener; name one with -b")
        if self._looks is None or address != self._address:
            self.close()
            self._looks = GroupLooks(reachable(address), self._wanted.command_config)
            self._address = address
        return self._looks.look()

    def close(self) -> None:
        if self._looks is not None:
            self._looks.__exit__(None, None, None)
            self._looks = None
