"""Defaults, `server.properties`, `-o key=value` and flags, merged into one `BrokerConfig`.

Later sources take precedence over earlier ones (the order of KIP-1137). Every problem of all sources is
collected before `ConfigError` is raised, each with the place where the value was written. A valid value that
is certainly a mistake is returned as a warning.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.config import known, limits, listeners, properties, security
from mpbroker.config.broker import BROKER_KEYS, DEFAULT_LOG_DIR, BrokerConfig
from mpbroker.config.consumer_groups import UNBUILT_PROTOCOLS, consumer_contradictions
from mpbroker.config.keys import ConfigError, ConfigType, Problem, Value, field_name
from mpbroker.config.remote import ACKS, REMOTE_URL, SYSTEM_ENABLE, remote_contradictions
from mpbroker.config.workers import MAX_LOG_DIRS

_LISTENER_KEYS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


class Flag(msgspec.Struct, frozen=True):
    """A command line flag that sets a key, such as `--handlers` for num.io.threads."""

    name: str
    key: str
    value: str


class Loaded(msgspec.Struct, frozen=True):
    """A valid configuration, and the warnings about its settings."""

    config: BrokerConfig
    warnings: tuple[Problem, ...]


class _Setting(msgspec.Struct, frozen=True):
    key: str
    text: str
    origin: str
    is_of_file: bool = False


def load(path: Path | None = None, overrides: Sequence[str] = (), flags: Sequence[Flag] = ()) -> Loaded:
    """Read and check all sources. Raises ConfigError, which names each problem."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    settings: dict[str, _Setting] = {}
    _merge(settings, _from_file(path), warnings)
    _merge(settings, _from_overrides(overrides, problems), warnings)
    _merge(settings, [_Setting(flag.key, flag.value, flag.name) for flag in flags], warnings)
    of_listeners = _take(settings, security.names_setting)
    own_limits = _take(settings, limits.names_limit)
    values = _values(_supported(settings, problems, warnings), problems)
    _add_listeners(values, settings, problems, warnings)
    _add_security(values, of_listeners, settings, problems)
    _add_limits(values, own_limits, settings, problems)
    if problems:
        raise ConfigError(sorted(problems, key=_line))
    origins = {key: setting.origin for key, setting in settings.items() if key in BROKER_KEYS}
    origins |= {setting.key: setting.origin for setting in own_limits}
    idle = {key: _shown(key, setting.text) for key, setting in settings.items() if key not in BROKER_KEYS}
    config = BrokerConfig(**values, origins=origins, idle=idle)
    if problems := contradictions(config):
        raise ConfigError(problems)
    if config.super_users and not config.authorizer_class_name:
        message = "super.users has no effect: without authorizer.class.name everybody may do everything"
        warnings.append(Problem("super.users", origins["super.users"], message))
    if config.mpbroker_remote_url and not config.remote_log_storage_system_enable:
        message = f"{REMOTE_URL} has no effect: {SYSTEM_ENABLE} is false"
        warnings.append(Problem(REMOTE_URL, origins[REMOTE_URL], message))
    for protocol in config.group_coordinator_rebalance_protocols:
        if protocol in UNBUILT_PROTOCOLS:
            key = "group.coordinator.rebalance.protocols"
            message = f"{protocol} in {key} has no effect: {protocol} groups are not built yet"
            warnings.append(Problem(key, origins[key], message))
    return Loaded(config, tuple(sorted(warnings, key=_line)))


def _shown(key: str, text: str) -> str:
    """Return the text to show for a setting that has no effect, "" if the setting may be a secret."""
    kind = known.kafka_keys().get(key)
    return text.strip() if kind is not None and kind.type is not ConfigType.PASSWORD else ""


def _line(problem: Problem) -> tuple[bool, int]:
    """Return a sort key: problems of the file come first, by line; -o and flags have no line."""
    line = problem.origin.rpartition(":")[2]
    return (False, int(line)) if line.isdigit() else (True, 0)


def _from_file(path: Path | None) -> list[_Setting]:
    if path is None:
        return []
    try:
        entries = properties.parse(path.read_text(encoding="utf-8"))
    except properties.PropertiesError as error:
        raise ConfigError([Problem("", f"{path}:{error.line}", error.message)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", str(path), f"is not UTF-8 text (byte {error.start})")]) from error
    except OSError as error:
        raise ConfigError([Problem("", str(path), f"cannot be read: {error.strerror}")]) from error
    settings = [_Setting(entry.key, entry.value, f"{path}:{entry.line}", True) for entry in entries]
    # In Kafka log.dirs beats log.dir wherever the two stand, so second names go first.
    return sorted(settings, key=lambda setting: setting.key not in known.ALIASES)


def _from_overrides(overrides: Sequence[str], problems: list[Problem]) -> list[_Setting]:
    settings = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if equals and key.strip() and _is_secret(key.strip()):
            why = f"{key.strip()} is a secret, and a command line can be read by everybody on this host"
            problems.append(Problem(key.strip(), "-o", f"{why}: write it into the properties file"))
        elif equals and key.strip():
            settings.append(_Setting(key.strip(), text, "-o"))
        else:
            problems.append(Problem(override, "-o", f"'{override}' is not key=value"))
    return settings


def _is_secret(key: str) -> bool:
    return any(
        key == name or key.endswith(f".{name}")
        for name, one in BROKER_KEYS.items()
        if one.type is ConfigType.PASSWORD
    )


def _merge(settings: dict[str, _Setting], more: Iterable[_Setting], warnings: list[Problem]) -> None:
    """Add `more` to `settings`. A later value replaces a different earlier value, with a warning."""
    for setting in more:
        key = known.ALIASES.get(setting.key, setting.key)
        before = settings.get(key)
        if before is not None and before.text.strip() != setting.text.strip():
            message = f"{setting.key} given here beats the one given in {before.origin}"
            warnings.append(Problem(key, setting.origin, message))
        settings[key] = msgspec.structs.replace(setting, key=key)


def _take(settings: dict[str, _Setting], is_wanted: Callable[[str], bool]) -> list[_Setting]:
    return [settings.pop(key) for key in list(settings) if is_wanted(key)]


def _protocols(values: dict[str, Any], settings: dict[str, _Setting]) -> dict[str, str]:
    """Return, by listener name, the security protocol of each listener that can have settings of its own.

    These listeners are the configured ones, and those that the protocol map names: a listener with such a
    name may be added while the broker runs.
    """
    later = {}
    if "listener.security.protocol.map" in settings:
        later = values.get("listener_security_protocol_map", {})
    return later | {one.name: one.protocol for one in _served(values)}


def _served(values: dict[str, Any]) -> tuple[listeners.Listener, ...]:
    return values.get("listeners") or BrokerConfig().listeners


def _add_limits(
    values: dict[str, Any],
    of_listeners: list[_Setting],
    settings: dict[str, _Setting],
    problems: list[Problem],
) -> None:
    """Add the limits of single listeners to `values`; change listener names in other values to upper case."""
    names = set(_protocols(values, settings))
    found: dict[str, dict[str, int]] = {}
    for setting in of_listeners:
        try:
            listener, key, limit = limits.parse_limit(setting.key, setting.text, names)
        except ValueError as error:
            problems.append(Problem(setting.key, setting.origin, str(error)))
        else:
            found.setdefault(listener, {})[field_name(key)] = limit
    values["listener_limits"] = {name: limits.ListenerLimits(**own) for name, own in found.items()}
    for field in ("inter_broker_listener_name", "control_plane_listener_name"):
        if values.get(field) is not None:
            values[field] = values[field].strip().upper() or None
    values["admin_listener_names"] = tuple(
        dict.fromkeys(name.upper() for name in values.get("admin_listener_names", ()))
    )


def _add_security(
    values: dict[str, Any],
    of_listeners: list[_Setting],
    settings: dict[str, _Setting],
    problems: list[Problem],
) -> None:
    """Add the security settings of each listener to `values`, and a problem for each missing setting."""
    protocols = _protocols(values, settings)
    overrides: dict[tuple[str, str], dict[str, Value]] = {}
    for setting in of_listeners:
        try:
            listener, mechanism, key = security.prefixed(setting.key, set(protocols))
            value = key.parse(setting.text)
        except ValueError as error:
            problems.append(Problem(setting.key, setting.origin, str(error)))
        else:
            overrides.setdefault((listener, mechanism), {})[field_name(key.name)] = value
    own = {name: values[name] for name in security.SecuritySettings.__struct_fields__ if name in values}
    resolved = security.resolve(security.SecuritySettings(**own), protocols, overrides)
    values["listener_security"] = resolved
    origin = settings["listeners"].origin if "listeners" in settings else ""
    for one in _served(values):
        problems.extend(
            Problem("listeners", origin, why) for why in security.missing(one.name, one.protocol, resolved)
        )


def _supported(
    settings: dict[str, _Setting], problems: list[Problem], warnings: list[Problem]
) -> dict[str, _Setting]:
    """Return the settings that this broker has. Add a problem or a warning for each other setting."""
    supported = {}
    for key, setting in settings.items():
        if key in BROKER_KEYS:
            supported[key] = setting
            if pending := BROKER_KEYS[key].pending:
                warnings.append(Problem(key, setting.origin, f"{key} has no effect: {pending}"))
        elif key in known.HANDLED:
            continue
        elif not known.is_known(key):
            _add_unknown(setting, problems, warnings)
        elif reason := known.refusal(key, setting.text.strip()):
            problems.append(
                Problem(key, setting.origin, f"{key} cannot be honoured: {reason}; remove the line")
            )
        else:
            warnings.append(Problem(key, setting.origin, f"{key} has no effect: {known.no_effect(key)}"))
    return supported


def _add_unknown(setting: _Setting, problems: list[Problem], warnings: list[Problem]) -> None:
    """Add a problem or a warning about a key that neither Kafka nor this broker has.

    Kafka warns about such a key, which may belong to a plug-in. This broker warns if the key is in the
    file and `is_misspelt` is false for it. In all other cases the key is a problem.
    """
    key, guess = setting.key, known.nearest(setting.key)
    hint = f"; did you mean {guess}?" if guess else ""
    if setting.is_of_file and not known.is_misspelt(key):
        why = f"{key} has no effect: neither Kafka nor mpbroker has such a setting{hint}"
        warnings.append(Problem(key, setting.origin, why))
    else:
        problems.append(Problem(key, setting.origin, f"unknown setting {key}{hint}"))


def _values(supported: dict[str, _Setting], problems: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, setting in supported.items():
        if key in _LISTENER_KEYS:
            continue
        try:
            values[field_name(key)] = BROKER_KEYS[key].parse(setting.text)
        except ValueError as error:
            problems.append(Problem(key, setting.origin, str(error)))
    if not 0 < len(log_dirs := values.get("log_dirs", (DEFAULT_LOG_DIR,))) <= MAX_LOG_DIRS:
        text = f"log.dirs must name a directory, and {MAX_LOG_DIRS} at most"
        problems.append(Problem("log.dirs", supported["log.dirs"].origin, text))
    values["log_dirs"] = _absolute("log.dirs", log_dirs, supported, problems)
    if audit_log := values.get("audit_log_file"):
        (values["audit_log_file"],) = _absolute("audit.log.file", (audit_log,), supported, problems)
    return values


def _absolute(
    key: str, paths: Iterable[str], supported: dict[str, _Setting], problems: list[Problem]
) -> tuple[str, ...]:
    """Return the absolute paths. A relative path begins at the directory in which the broker was started."""
    try:
        return tuple(str(Path(path).expanduser().absolute()) for path in paths)
    except RuntimeError:
        named = " and ".join(path for path in paths if path.startswith("~"))
        problems.append(Problem(key, supported[key].origin, f"{key}: {named} is not in any user's home"))
        return tuple(paths)


def _add_listeners(
    values: dict[str, Any], settings: dict[str, _Setting], problems: list[Problem], warnings: list[Problem]
) -> None:
    """Add the protocol map and the listeners to `values`, without the listeners of a KRaft controller."""
    protocols = dict(listeners.DEFAULT_PROTOCOL_MAP)
    if (setting := settings.get("listener.security.protocol.map")) is not None:
        try:
            protocols = listeners.parse_protocol_map(setting.text)
        except ValueError as error:
            problems.append(Problem(setting.key, setting.origin, f"{setting.key}: {error}"))
            return
    values["listener_security_protocol_map"] = protocols
    if (roles := settings.get("process.roles")) is not None and "broker" not in roles.text:
        problems.append(Problem(roles.key, roles.origin, "process.roles must contain broker"))
    controllers = _controller_names(settings)
    for name in controllers:
        protocols.setdefault(name, "PLAINTEXT")
    for key in ("listeners", "advertised.listeners"):
        setting = settings.get(key)
        if setting is None:
            continue
        try:
            parsed = listeners.parse_listeners(setting.text, protocols, unique_ports=key == "listeners")
        except ValueError as error:
            problems.append(Problem(key, setting.origin, f"{key}: {error}"))
            continue
        kept = tuple(listener for listener in parsed if listener.name not in controllers)
        values[field_name(key)] = kept
        for listener in parsed:
            if listener not in kept and key == "listeners":
                message = f"listener {listener} is not opened: the controller has no listener of its own"
                warnings.append(Problem(key, setting.origin, message))
        if key == "listeners" and len(kept) > listeners.MAX_LISTENERS:
            message = f"listeners has {len(kept)} entries; a broker serves at most {listeners.MAX_LISTENERS}"
            problems.append(Problem(key, setting.origin, message))
        if not kept:
            problems.append(Problem(key, setting.origin, f"{key} has no listener for clients"))


def _controller_names(settings: dict[str, _Setting]) -> set[str]:
    setting = settings.get("controller.listener.names")
    return {name.strip().upper() for name in setting.text.split(",") if name.strip()} if setting else set()


def _check_listeners(config: BrokerConfig, names: set[str], wrong: Callable[[str, str], None]) -> None:
    """Report settings that name unknown or unsuitable listeners, and a limit that refuses all clients."""
    special = {
        "inter.broker.listener.name": config.inter_broker_listener_name,
        "control.plane.listener.name": config.control_plane_listener_name,
    }
    for key, name in special.items():
        if name is not None and name not in names:
            wrong(key, limits.no_listener(f"{key}={name}", name, names))
    if config.control_plane_listener_name is not None:
        if config.control_plane_listener_name == config.inter_broker_listener_name:
            wrong(
                "control.plane.listener.name",
                "control.plane.listener.name and inter.broker.listener.name must be different listeners",
            )
        if names == {config.control_plane_listener_name}:
            wrong(
                "control.plane.listener.name",
                f"{config.control_plane_listener_name} is the only listener: clients need another one",
            )
    key = "admin.listener.names"
    for name in config.admin_listener_names:
        if name not in names:
            wrong(key, limits.no_listener(key, name, names))
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        wrong(
            "max.connections.per.ip",
            "max.connections.per.ip=0 refuses all clients: name addresses that may connect in "
            "max.connections.per.ip.overrides",
        )


def new_contradictions(before: BrokerConfig, after: BrokerConfig) -> list[Problem]:
    """Return the contradictions of `after` that `before` does not have.

    A contradiction that was accepted earlier does not prevent other changes.
    """
    known = {problem.message for problem in contradictions(before)}
    return [problem for problem in contradictions(after) if problem.message not in known]


def contradictions(config: BrokerConfig) -> list[Problem]:
    """Return the problems of values that exclude each other (Kafka: `KafkaConfig.validateValues`)."""
    found = []

    def wrong(key: str, message: str) -> None:
        found.append(Problem(key, config.origins.get(key, ""), message))

    names = {listener.name for listener in config.listeners}
    for listener in config.advertised_listeners or config.listeners:
        if listener.name not in names:
            wrong(
                "advertised.listeners", f"advertised.listeners has {listener.name}, which is not in listeners"
            )
        if listener.host in listeners.META_ADDRESSES:
            key = "advertised.listeners" if config.advertised_listeners else "listeners"
            advice = f"set advertised.listeners={listener.name}://<name clients can reach>:{listener.port}"
            wrong(key, f"clients cannot connect to {listener.host}; {advice}")
    _check_listeners(config, names, wrong)
    pool = config.queued_max_request_bytes
    if 0 < pool < config.socket_request_max_bytes:
        wrong(
            "queued.max.request.bytes",
            f"queued.max.request.bytes={pool} must be at least "
            f"socket.request.max.bytes={config.socket_request_max_bytes}, or -1",
        )
    if config.default_replication_factor > 1 and not config.mpbroker_replication_factor_clamp:
        wrong(
            "default.replication.factor",
            f"default.replication.factor={config.default_replication_factor} needs more than this "
            "single node; set it to 1, or mpbroker.replication.factor.clamp=true to get one replica instead",
        )
    if config.min_insync_replicas > 1 and not config.mpbroker_replication_factor_clamp:
        wrong(
            "min.insync.replicas",
            f"min.insync.replicas={config.min_insync_replicas} needs more than this single node; set it to "
            "1, or mpbroker.replication.factor.clamp=true to be content with one replica",
        )
    delay_ms, idle_ms = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
    if 0 <= idle_ms <= delay_ms:
        wrong(
            "connection.failed.authentication.delay.ms",
            f"connection.failed.authentication.delay.ms={delay_ms} must be below "
            f"connections.max.idle.ms={idle_ms}",
        )
    lag_min, lag_max = config.log_cleaner_min_compaction_lag_ms, config.log_cleaner_max_compaction_lag_ms
    if lag_min > lag_max:
        wrong(
            "log.cleaner.min.compaction.lag.ms",
            f"log.cleaner.min.compaction.lag.ms={lag_min} is above "
            f"log.cleaner.max.compaction.lag.ms={lag_max}",
        )
    if config.ships_rounds and config.log_flush_policy == "os":
        wrong(
            "log.flush.policy",
            f"log.flush.policy=os contradicts {ACKS}=ledger: records must be on this disk before the object "
            "store has them; set log.flush.policy=group",
        )
    for key, message in remote_contradictions(config, config.retention_ms, config.log_retention_bytes):
        wrong(key, message)
    for key, bound, message in consumer_contradictions(config):
        wrong(key if key in config.origins else bound, message)
    return found
