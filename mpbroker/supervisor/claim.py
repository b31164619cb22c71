"""What a start checks and claims before the first fork: sockets, locks, directories, shared memory."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.extras import pip_install
from mpbroker.config.limits import resolved_overrides
from mpbroker.config.listeners import parse_http_listener
from mpbroker.config.otlp import OWN_SETTING, Destination, NotServed, destination
from mpbroker.config.remote import BUCKETS, REMOTE_URL
from mpbroker.ipc import console_token, settings, titles
from mpbroker.ipc.leading import NEVER
from mpbroker.ipc.mirror import follows
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import SharedMemory
from mpbroker.security.listener import ListenerSecurity, SecurityError, secure_listeners
from mpbroker.startup import buffers, runtime_dir, sockets
from mpbroker.startup.activation import Inherited
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from mpbroker.storage.directory_lock import LogDirLocks, remove_empty
from mpbroker.supervisor import tiering
from mpbroker.supervisor.listeners import Listeners
from mpbroker.supervisor.pointers import Pointers
from mpbroker.supervisor.system_limits import raise_file_limit

# The status of a wrong setting (cli.errors): the service manager must not try again.
EXIT_MISCONFIGURED: Final = 2
_OTLP_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-http"
_STORE_PACKAGE: Final = "obstore"

log = logging.getLogger("mpbroker.supervisor")


class Claim:
    """All exclusive resources of one broker. If a claim fails, the resources claimed before are released.

    The attribute `config` has the bound ports instead of port 0. Raises FatalError, RegionUnavailable.
    """

    def __init__(self, config: BrokerConfig) -> None:
        with contextlib.ExitStack() as undo:
            self._claim(config, undo)
            undo.pop_all()

    def _claim(self, config: BrokerConfig, undo: contextlib.ExitStack) -> None:
        try:
            raise_file_limit(config)
            settings.encode(config)  # it must fit into the messages of a reload
            security = _security_of(config)
        except (ValueError, SecurityError) as error:
            raise FatalError(str(error), EXIT_MISCONFIGURED) from error
        self.otlp = otlp_destination(config, os.environ)
        check_object_store(config)
        if config.client_telemetry_enable and not (config.http_listener or self.otlp):
            raise FatalError(
                "client.telemetry.enable=true: nothing would serve what clients push: set http.listener or "
                "otlp.endpoint",
                EXIT_MISCONFIGURED,
            )
        runtime_dir.check(config)
        # Check before a lock file is made in another program's directory.
        refuse_foreign_metadata(config.log_dirs)
        locks = LogDirLocks(config)
        undo.callback(locks.undo)
        self.locks = locks.fds
        self.identity = check_log_dirs(config)
        inherited = Inherited()
        fds, self.config = sockets.bind_all(_with_addresses(config), inherited)
        undo.callback(sockets.release, fds, self.config.listeners, inherited)
        titles.name_broker(self.config)
        titles.entitle("supervisor")
        self.http_fd, self.http = -1, ""
        if (http := parse_http_listener(config.http_listener)) is not None:
            self.http_fd, self.http = sockets.bind_http(http, config)
            undo.callback(os.close, self.http_fd)
        inherited.refuse_rest()
        self.directory, made = runtime_dir.make(config)
        undo.callback(remove_empty, made)
        self._directory_lock = runtime_dir.claim(self.directory)
        if self.http:
            console_token.make(self.directory)
            undo.callback(console_token.remove, self.directory)
        self.pointers = Pointers(self.config, self.directory, self.http)
        self.memory = SharedMemory(self.directory / PUBLIC_NAME, buffers.sizes(config))
        undo.callback(self.memory.close)
        if follows(config) or tiering.has_lease(config):
            self.memory.leading().until_ns = NEVER
        buffers.give_out(self.memory, config, config.num_network_threads)
        self.listeners = Listeners(self.config, fds, self.memory, security, inherited.serving)
        name_log_dirs(config, self.identity)

    def release(self) -> None:
        """Release everything at the end of the broker; the locks on the log directories come last."""
        self.pointers.remove()
        self.listeners.close()
        self.memory.close()
        console_token.remove(self.directory)
        runtime_dir.remove(self.directory)
        for fd in (self._directory_lock, *self.locks, *([self.http_fd] if self.http else [])):
            os.close(fd)


def _security_of(config: BrokerConfig) -> dict[int, ListenerSecurity]:
    """Check certificates, users and rules of all listeners; return the security by listener number.

    If keys that verify tokens are on another host, they are fetched once. Raises SecurityError.
    """
    found = secure_listeners(config)
    for security in found.values():
        security.fetch_keys()
    return found


def _with_addresses(config: BrokerConfig) -> BrokerConfig:
    """Resolve the host names in max.connections.per.ip.overrides once, as Kafka does. Raises FatalError."""
    try:
        overrides = resolved_overrides(config.max_connections_per_ip_overrides)
    except ValueError as error:
        raise FatalError(str(error)) from error
    return structs.replace(config, max_connections_per_ip_overrides=overrides)


def check_object_store(config: BrokerConfig) -> None:
    """Raise FatalError if tiered storage is on and the package that reaches its bucket is not installed.

    The package is not imported: what it starts does not survive a fork.
    """
    scheme = config.mpbroker_remote_url.partition(":")[0]
    if config.remote_log_storage_system_enable and scheme in BUCKETS and not _is_installed(_STORE_PACKAGE):
        raise FatalError(
            f"{REMOTE_URL}={config.mpbroker_remote_url} needs {_STORE_PACKAGE}, which is not installed: "
            f"{pip_install('tier')}",
            EXIT_MISCONFIGURED,
        )


def _is_installed(package: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def otlp_destination(config: BrokerConfig, environ: Mapping[str, str]) -> Destination | None:
    """Return the destination of metrics by OTLP, None if no destination is set or usable.

    An unusable broker setting raises FatalError. An unusable environment variable is only a warning, since it
    may be meant for other programs of this host.
    """
    is_set = "otlp.export.interval.ms" in config.origins
    interval_ms = config.otlp_export_interval_ms if is_set else None
    try:
        found = destination(config.otlp_endpoint, interval_ms, environ)
    except NotServed as error:
        log.warning("metrics are not sent by OTLP: %s", error)
        return None
    if found is None:
        return None
    if not _is_installed(_OTLP_PACKAGE):
        install = pip_install("otlp")
        problem = f"{found.said_by} needs OpenTelemetry's exporter, which is not installed: {install}"
        if found.said_by == OWN_SETTING:
            raise FatalError(problem)
        log.warning("metrics are not sent by OTLP: %s", problem)
        return None
    return found
