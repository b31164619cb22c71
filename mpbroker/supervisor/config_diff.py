"""The changes that another configuration makes to a running broker (sans-I/O).

Settings that clients altered take precedence over the configuration file and flags (config.dynamic). The new
configuration is checked as a whole, by the rules of a start, and against settings that cannot change now. A
single mistake refuses all changes. A changed setting belongs to one of these kinds:

follows    every process uses the new value when the supervisor orders it (ipc.settings)
replaced   handlers keep the value in tables: they are replaced one after the other (supervisor.changing)
resized    it is a number of workers (supervisor.changing has the rule for resizes)
later      it needs a restart: it belongs to state made before the first fork, or to files on disk
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import structs

from mpbroker.config.altered import Altered
from mpbroker.config.broker import BROKER_KEYS, BrokerConfig
from mpbroker.config.consumer_groups import ConsumerProtocolSettings
from mpbroker.config.dynamic import overlaid, within_bounds
from mpbroker.config.keys import ConfigError, field_name
from mpbroker.config.limits import resolved_overrides
from mpbroker.config.load import Loaded, new_contradictions
from mpbroker.config.security import SecuritySettings
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.config.workers import RESIZABLE
from mpbroker.ipc import settings

ReadAgain: TypeAlias = Callable[[], Loaded]

log = logging.getLogger("mpbroker.supervisor")

# Every process reads these when it needs them, from its one configuration object.
FOLLOWED = {
    *("admin_listener_names", "advertised_listeners", "audit_log_file", "audit_log_format"),
    *("audit_log_level", "auto_create_topics_enable", "connection_failed_authentication_delay_max_ms"),
    *("connection_failed_authentication_delay_ms", "connections_max_idle_ms", "connections_max_login_ms"),
    *("default_replication_factor", "delete_topic_enable", "fetch_max_bytes"),
    *("group_initial_rebalance_delay_ms", "group_max_members_bytes", "group_max_session_timeout_ms"),
    *("group_max_size", "group_min_session_timeout_ms", "handler_hang_timeout_ms"),
    *("http_console_client_config", "http_console_enable", "http_console_schema_registry_config"),
    *("http_console_write", "http_hosts"),
    *("listener_limits", "listener_security", "log_cleaner_backoff_ms", "log_cleaner_dedupe_buffer_size"),
    *("log_cleaner_io_buffer_load_factor", "log_cleaner_io_buffer_size"),
    *("log_cleaner_io_max_bytes_per_second", "log_flush_offset_checkpoint_interval_ms"),
    *("log_retention_check_interval_ms", "log_scrub_interval_ms", "log_scrub_max_bytes_per_second"),
    *("max_auto_created_partitions_per_principal", "max_connection_creation_rate", "max_connections"),
    *("max_connections_per_ip", "max_connections_per_ip_overrides", "max_in_flight_requests_per_connection"),
    *("max_incremental_fetch_session_cache_slots", "max_parked_bytes", "max_parked_bytes_per_connection"),
    *("max_parked_bytes_per_principal", "max_producer_ids_per_partition", "max_request_partition_size_limit"),
    "max_unauthenticated_connections",
    *("mpbroker_remote_cache_bytes", "mpbroker_remote_checkpoint_interval_ms"),
    *("mpbroker_remote_checkpoint_retention_ms", "mpbroker_remote_commit_interval_ms"),
    "mpbroker_remote_delete_delay_ms",
    *("mpbroker_replication_factor_clamp", "num_partitions", "offset_metadata_max_bytes"),
    *("offsets_retention_check_interval_ms", "offsets_retention_minutes", "offsets_topic_num_partitions"),
    *("offsets_topic_segment_bytes", "producer_id_expiration_ms", "queued_max_requests"),
    *("remote_fetch_max_wait_ms", "remote_list_offsets_request_timeout_ms"),
    *("remote_log_manager_copy_max_bytes_per_second", "remote_log_manager_fetch_max_bytes_per_second"),
    *("remote_log_manager_task_interval_ms", "replica_alter_log_dirs_io_max_bytes_per_second"),
    *("socket_request_max_bytes", "socket_send_buffer_bytes", "transaction_partition_verification_enable"),
    *ConsumerProtocolSettings.__struct_fields__,  # and of SecuritySettings, from which it derives
}
# Defaults of topics. Handlers keep them with each topic, ready for the turn.
IN_TABLES = {field_name(name) for key in TOPIC_KEYS.values() for name in key.synonyms} | {
    "fetch_purgatory_purge_interval_requests"
}
WORKERS = {field_name(name) for name in RESIZABLE}
# All other settings belong to state made before the first fork, or to files on disk.
_LISTENERS = "mpbroker ctl listener adds and removes listeners at once"
_RESTART = "restart the broker"
_INSTEAD = {"listeners": _LISTENERS, "listener_security_protocol_map": _LISTENERS}
_SECURITY = "listener_security"
_OVERRIDES = "max_connections_per_ip_overrides"
_KEYS = {field_name(key): key for key in BROKER_KEYS} | {
    "listener_limits": "listener.name.<listener>.max.connections or .max.connection.creation.rate",
    _SECURITY: "listener.name.<listener>.<security setting>",
}


class ReloadError(Exception):
    """A new configuration is refused and nothing changes. The message is one line."""


class NoFile(ReloadError):
    """The broker was started without a configuration file, so there is none to read again.

    This is logged only as a warning: the kernel also sends SIGHUP when a terminal is closed.
    """


@dataclass(frozen=True)
class Changes:
    """The changes of one reload. `config` is the new configuration, but with the old numbers of workers."""

    config: BrokerConfig
    encoded: bytes
    names: list[str]  # the settings that change, as an operator writes them
    later: dict[str, str]  # the settings that do not change, and the advice for each
    warnings: list[str] = field(default_factory=list)
    handlers: int | None = None
    processors: int | None = None
    replaces_handlers: bool = False
    asked: BrokerConfig | None = None
    static: BrokerConfig | None = None  # `asked` without what clients have altered

    @property
    def resizes(self) -> bool:
        return self.handlers is not None or self.processors is not None

    def log(self, why: str) -> None:
        """Log the changes. `why` names the cause, such as reload."""
        for warning in self._all_warnings():
            log.warning("%s: %s", why, warning)
        if self.names:
            log.info("%s: changed %s", why, ", ".join(self.names))
        elif not self.later:
            log.info("%s: the configuration is as it was", why)

    def result(self, replaced: list[str], error: str) -> dict[str, Any]:
        """Return the answer of `ctl reload`. `error` is "" if all processes use the new settings."""
        if error:
            return {"error": f"the settings changed, but some processes do not follow them: {error}"}
        return {
            "changed": self.names,
            "at_next_start": list(self.later),
            "replaced": replaced,
            "warnings": self._all_warnings(),
        }

    def _all_warnings(self) -> list[str]:
        later = [f"{key} cannot change while the broker runs: {what}" for key, what in self.later.items()]
        return [*self.warnings, *later]


class ConfigDiff:
    """Compares new configurations with the last one.

    The last configuration is kept as it was read: with port 0 for listeners whose port the system chose.
    """

    def __init__(self, asked: BrokerConfig, read_again: ReadAgain | None) -> None:
        self._static = self._asked = asked
        self._read_again = read_again

    def reread(self, now: BrokerConfig, altered: Altered) -> Changes:
        """Read the file again; return the changes that it makes to `now`, the broker's configuration.

        Raises ReloadError.
        """
        if self._read_again is None:
            raise NoFile("the broker was started without a configuration file; restart it with --config FILE")
        try:
            loaded = self._read_again()
        except ConfigError as error:
            raise ReloadError(_one_line(error.problems)) from error
        except OSError as error:
            raise ReloadError(str(error.strerror)) from error
        return self._changes(now, loaded.config, altered, [str(warning) for warning in loaded.warnings])

    def altered(self, now: BrokerConfig, altered: Altered) -> Changes:
        """Return the changes that clients' settings (`altered`) make to `now`. Raises ReloadError.

        The configuration file is not read again.
        """
        return self._changes(now, self._static, altered, [])

    def _changes(
        self, now: BrokerConfig, static: BrokerConfig, altered: Altered, warnings: list[str]
    ) -> Changes:
        asked = self._asked
        with _refusing():
            read, capped = within_bounds(overlaid(static, altered.broker, altered.default))
        differing = {name for name in BrokerConfig.__struct_fields__ if self._differs(name, read)}
        later = {name: _INSTEAD.get(name, _RESTART) for name in differing if not _can_change(name)}
        changing = {name: getattr(read, name) for name in differing - later.keys()}
        workers = {name: changing[name] for name in WORKERS & changing.keys()}
        effective = {name: value for name, value in changing.items() if name not in workers}
        named = changing.keys() - ({_SECURITY} if not _own_security_differs(read, asked) else set())
        if _OVERRIDES in effective:
            with _refusing():
                effective[_OVERRIDES] = resolved_overrides(read.max_connections_per_ip_overrides)
        if "advertised_listeners" in effective:
            effective["advertised_listeners"] = _advertised(read, asked, now)
        origins = _origins(read, asked, later)
        config = structs.replace(
            now,
            **effective,
            origins=origins,
            altered=read.altered,
            resizing_to={_KEYS[name]: number for name, number in workers.items()},
        )
        if problems := new_contradictions(now, config):
            raise ReloadError(
                f"settings that cannot change while the broker runs contradict it: {_one_line(problems)}"
            )
        with _refusing():
            encoded = settings.encode(config)
        kept = {name: getattr(asked, name) for name in later}
        return Changes(
            config,
            encoded,
            sorted({_KEYS[name] for name in named} | set(asked.altered.differing(read.altered))),
            {_KEYS[name]: what for name, what in sorted(later.items())},
            warnings + capped,
            workers.get("num_io_threads"),
            workers.get("num_network_threads"),
            replaces_handlers=bool(IN_TABLES & changing.keys()),
            asked=structs.replace(asked, **changing, origins=origins, altered=read.altered),
            static=structs.replace(static, **kept, origins=_origins(static, self._static, later)),
        )

    def done(self, changes: Changes) -> None:
        """Record that all running processes use the changes. Without this, the next reload repeats them."""
        assert changes.asked is not None
        assert changes.static is not None
        self._asked, self._static = changes.asked, changes.static

    def _differs(self, name: str, read: BrokerConfig) -> bool:
        key = _KEYS.get(name)
        if key is None:
            return False
        if name in WORKERS and self._asked.altered.text(key) != read.altered.text(key):
            return True  # even if the file has the same number: a resize may have come in between
        if key in BROKER_KEYS and key not in read.origins and key not in self._asked.origins:
            return False  # a default that follows the machine
        return bool(getattr(read, name) != getattr(self._asked, name))


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a ValueError that is raised in this context into a ReloadError."""
    try:
        yield
    except ValueError as error:
        raise ReloadError(str(error)) from error


def _can_change(name: str) -> bool:
    return name in FOLLOWED or name in IN_TABLES or name in WORKERS


def _own_security_differs(read: BrokerConfig, asked: BrokerConfig) -> bool:
    """Return whether a security setting for a single listener (listener.name.…) has changed.

    A change of the general setting also changes listeners' security, but is reported by the general name.
    """
    new, old = read.listener_security, asked.listener_security
    same = [
        name for name in SecuritySettings.__struct_fields__ if getattr(read, name) == getattr(asked, name)
    ]
    return new.keys() != old.keys() or any(
        getattr(new[key], name) != getattr(old[key], name) for key in new for name in same
    )


def _one_line(problems: Any) -> str:
    return "; ".join(str(problem) for problem in problems)


def _origins(read: BrokerConfig, asked: BrokerConfig, later: dict[str, str]) -> dict[str, str]:
    """Return the origin (file or flag) of each setting: the old origin for settings in `later`."""
    kept = {_KEYS[name] for name in later}
    found = {key: origin for key, origin in read.origins.items() if key not in kept}
    return found | {key: origin for key, origin in asked.origins.items() if key in kept}


def _advertised(read: BrokerConfig, asked: BrokerConfig, now: BrokerConfig) -> Any:
    """Return the advertised listeners of `read`, plus those in `now` of listeners added since the start."""
    from_file = {one.name for one in (*asked.listeners, *(read.advertised_listeners or ()))}
    added = tuple(one for one in now.advertised_listeners or () if one.name not in from_file)
    return (*(read.advertised_listeners or ()), *added) or None
