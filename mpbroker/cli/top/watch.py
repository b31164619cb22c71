"""Takes samples of a running broker or a stopped broker's directories; asks a running broker for groups.

If the broker was killed, stopped or started since the last sample, the next sample is of its new state.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.cli.cluster.client import OF_COMMANDS, open_admin
from mpbroker.cli.errors import CliError
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.host.local_broker import LocalBroker, bootstrap_of_environment, by_log_dirs
from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ClientError
from mpbroker.config.listeners import reachable
from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.observe import at_rest
from mpbroker.observe.at_rest import NotAtRest
from mpbroker.observe.live import LiveBroker
from mpbroker.observe.samples import BrokerSeen, Groups, GroupSeen, Health, Sample

AT_REST_EVERY_S: Final = 5.0
"""Directories at rest change seldom, and reading them costs more than shared memory."""
REQUEST_TIMEOUT_MS: Final = 5_000
_ADVICE: Final = "name another listener with -b, and the settings it needs with --command-config"


class BrokerFlags(NamedTuple):
    """The flags that name a broker. With `log_dirs`, `bootstrap` is only the address to ask for groups."""

    log_dirs: str | None = None
    bootstrap: str | None = None
    command_config: Path | None = None
    port: int | None = None

    @property
    def local(self) -> LocalBroker:
        return LocalBroker(self.log_dirs, self.port, None if self.log_dirs is not None else self.bootstrap)

    @property
    def address(self) -> str | None:
        """Return the address to ask for groups; None if neither flags nor environment name one."""
        if self.bootstrap is not None or self.log_dirs is not None or self.port is not None:
            return self.bootstrap
        return bootstrap_of_environment()


class Watch:
    """Takes samples of one broker. Only one thread may call its methods."""

    def __init__(self, wanted: BrokerFlags) -> None:
        self._wanted = wanted
        self._live: LiveBroker | None = None
        # Known once a broker was found by its port, which finds it no longer after it has stopped.
        self._log_dirs = [one.strip() for one in (wanted.log_dirs or "").split(",") if one.strip()]
        self._rest: tuple[float, Sample, Groups] | None = None

    def first(self) -> Sample:
        """Take the first sample, of a running or stopped broker. Raises CliError, ControlError, OSError."""
        try:
            return self._sample_live()
        except (CliError, ControlError) as error:
            try:
                return self._sample_at_rest()
            except (NotAtRest, CliError):
                raise error from None

    def sample(self) -> Sample:
        """Take a sample. If the broker cannot be reached, the sample's note has the reason."""
        try:
            return self._sample_live()
        except (CliError, ControlError) as error:
            problem = str(error)
        self._live = None
        try:
            return self._sample_at_rest()
        except (NotAtRest, CliError, OSError):
            broker = BrokerSeen(Health.UNKNOWN, problem, log_dirs=tuple(self._log_dirs))
            return Sample(time.monotonic_ns(), broker)

    def groups_at_rest(self) -> Groups | None:
        """Return the groups in a stopped broker's files; None if the last sample was of a running broker."""
        return self._rest[2] if self._rest is not None else None

    def _sample_live(self) -> Sample:
        if self._live is None:
            self._live = LiveBroker(self._find())
        sample = self._live.sample()
        self._rest = None
        self._log_dirs = list(sample.broker.log_dirs) or self._log_dirs
        return sample

    def _find(self) -> ControlClient:
        return by_log_dirs(",".join(self._log_dirs)) if self._log_dirs else self._wanted.local.control()

    def _sample_at_rest(self) -> Sample:
        now_s = time.monotonic()
        if self._rest is None or now_s - self._rest[0] > AT_REST_EVERY_S:
            self._rest = None
            if not self._log_dirs and (self._wanted.port or self._wanted.address):
                raise NotAtRest("a broker that listens nowhere cannot be found: name its --log-dirs")
            sample, groups_there = at_rest.sample(self._log_dirs or ["data"])
            self._rest = (now_s, sample, groups_there)
        return self._rest[1]


class GroupWatch:
    """Asks a running broker for its groups; reconnects when its address changes."""

    def __init__(self, wanted: BrokerFlags) -> None:
        self._wanted = wanted
        self._address = ""
        self._admin: Admin | None = None

    def groups(self, broker: BrokerSeen) -> Groups:
        """Return the groups or the problem. Raises ClientConfigError for a wrong --command-config."""
        address = self._wanted.address or next((one.partition("://")[2] for one in broker.listeners), "")
        if not address:
            return Groups(time.monotonic_ns(), problem="the broker has no listener; name one with -b")
        if self._admin is None or address != self._address:
            self.close()
            base = msgspec.structs.replace(OF_COMMANDS, request_timeout_ms=REQUEST_TIMEOUT_MS)
            where = ClusterAddress(reachable(address), self._wanted.command_config)
            self._admin, self._address = open_admin(where, base, _ADVICE), address
        try:
            found = groups.describe_all(self._admin)
        except ClientError as error:
            return Groups(time.monotonic_ns(), problem=str(error))
        return Groups(time.monotonic_ns(), tuple(map(_group_seen, found)))

    def close(self) -> None:
        if self._admin is not None:
            self._admin.cluster.close()
            self._admin = None


def _group_seen(one: groups.GroupOffsets) -> GroupSeen:
    members = None if one.group is None else one.group.members
    count = None if members is None else len(members)
    assigned = frozenset(place for member in members or () for place in member.partitions)
    return GroupSeen(one.name, one.state, count, one.committed, assigned, one.type, one.group)
