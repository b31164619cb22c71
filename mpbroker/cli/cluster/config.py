"""`mpbroker config`: settings of topics, groups, client metrics, brokers and loggers.

(DescribeConfigs, IncrementalAlterConfigs; Kafka: ConfigCommand)
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.cluster.topic import parse_setting
from mpbroker.cli.errors import USAGE_ERROR, CliError, with_advice
from mpbroker.cli.flags import ClusterAddress, DryRun, Json, complete_settings, flag, option
from mpbroker.cli.text.numbers import INT
from mpbroker.cli.text.output import print_json, print_rows, print_table, say_each
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, not_done
from mpbroker.config import known
from mpbroker.config.broker import BROKER_KEYS
from mpbroker.config.describe import ConfigSource
from mpbroker.config.keys import ConfigType
from mpbroker.config.resource_config import (
    CLIENT_METRICS_KEYS,
    DECIDING,
    GROUP_KEYS,
    TELEMETRY_IS_OFF,
    in_effect,
)
from mpbroker.config.sample import sample
from mpbroker.config.topic_config import TOPIC_KEYS
from mpbroker.protocol import messages as m
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.printable import printable

config_app = App(no_args_is_help=True)
# The source of what a resource itself sets, which inherits its other settings from the broker.
_OWN_SOURCES = {
    ConfigResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigResourceType.GROUP: ConfigSource.DYNAMIC_GROUP_CONFIG,
    ConfigResourceType.CLIENT_METRICS: ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
}
# The resources that exist by their settings alone, by the flags that name them.
_LISTED = {ConfigResourceType.CLIENT_METRICS: "client-metrics", ConfigResourceType.GROUP: "group"}
# In place of a value that brokers never return.
HIDDEN = "(hidden)"


class ConfigTarget(NamedTuple):
    """The flags that name a resource with settings: at most one of them, or --broker and --loggers."""

    topic: Annotated[str | None, option("--topic", "NAME", "Of this topic.")] = None
    group: Annotated[
        str | None, option("--group", "NAME", "Of this consumer group; it need not exist yet.")
    ] = None
    client_metrics: Annotated[
        str | None,
        option(
            "--client-metrics", "NAME", "Of this subscription to clients' metrics; it need not exist yet."
        ),
    ] = None
    broker: Annotated[
        int | None,
        option(
            "--broker", "ID", "Of this broker; default, without the others: of the only one.", callback=INT
        ),
    ] = None
    defaults: Annotated[
        bool, flag("--broker-defaults", "Settings of the whole cluster, for all its brokers.")
    ] = False
    loggers: Annotated[bool, flag("--loggers", "Levels of the broker's loggers.")] = False


class Resource(NamedTuple):
    """A resource that has settings. `text` names it for users, `keys` are its possible settings."""

    type: ConfigResourceType
    name: str
    text: str
    keys: Collection[str]


def _parsed(texts: Sequence[str]) -> dict[str, str | None]:
    """Parse KEY=VALUE texts. Raises CliError for a malformed text and for a repeated key."""
    changes: dict[str, str | None] = {}
    for text in texts:
        key, value = parse_setting(text, flag="")
        if key in changes:
            raise CliError(f"{text}: {key} is set twice", USAGE_ERROR)
        changes[key] = value
    return changes


@config_app.command("get")
def config_get(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ] = None,
    *,
    target: ConfigTarget,
    all_settings: Annotated[bool, flag("--all", "Those that have their default, too.")] = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Print settings and where each value comes from.

    With one KEY, print its value alone; without KEY, what is set. --json adds type, synonyms and docs.
    """
    keys = keys or []
    with open_admin(where) as client:
        resource = _resource(client, target)
        entries = _described(client, resource, keys)
        _check_known(resource, keys, entries)
        if not keys and not all_settings:
            entries = [entry for entry in entries if _is_set(resource, entry)]
        effective = _in_effect(client, resource, entries)
    if json:
        print_json([_document(entry, effective) for entry in entries])
    elif len(keys) == 1:
        print(printable(_value(entries[0]) or ""))
        if entries[0].value != (used := effective.get(keys[0], entries[0].value)):
            text = f"{resource.text}: {keys[0]}={entries[0].value} is not in effect: the broker uses {used}"
            print(f"mpbroker: {printable(text)}", file=sys.stderr)
    elif entries and resource.type == ConfigResourceType.GROUP:
        print_table(
            ("KEY", "VALUE", "IN-EFFECT", "SOURCE"),
            [(one.name, one.value, effective.get(one.name), _source(one.config_source)) for one in entries],
        )
    elif entries:
        rows = [(entry.name, _value(entry), _source(entry.config_source)) for entry in entries]
        print_table(("KEY", "VALUE", "SOURCE"), rows)
    else:
        print(printable(f"{resource.text} has no settings of its own; --all shows those that it has got"))


@config_app.command("list")
def config_list(*, where: ClusterAddress, json: Json = False) -> None:
    """List groups and subscriptions to metrics that have settings."""
    with open_admin(where) as client:
        found = client.config_resources(_LISTED)
    rows = [{"type": _LISTED[ConfigResourceType(kind)], "name": name} for kind, name in sorted(found)]
    print_rows(rows, as_json=json, nothing="no group or subscription has settings of its own")


@config_app.command("set")
def config_set(
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", hidden=True, autocompletion=complete_settings)
    ],
    *,
    target: ConfigTarget,
    dry_run: DryRun = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Set settings, all or none."""
    _alter(where, target, _parsed(settings), is_dry=dry_run, as_json=json)


@config_app.command("unset")
def config_unset(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", hidden=True, autocompletion=complete_settings)
    ],
    *,
    target: ConfigTarget,
    dry_run: DryRun = False,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Reset settings to their defaults."""
    _alter(where, target, dict.fromkeys(keys), is_dry=dry_run, as_json=json)


@config_app.command("sample")
def config_sample() -> None:
    """Print a server.properties with all settings, commented out.

    Each that has an effect has its default and a description: mpbroker config sample > server.properties
    """
    print(sample(), end="")


def _alter(
    where: ClusterAddress,
    target: ConfigTarget,
    changes: Mapping[str, str | None],
    *,
    is_dry: bool,
    as_json: bool,
) -> None:
    """Set settings; unset a setting whose value is None. Either all succeed or none. Raises CliError."""
    with open_admin(where) as client:
        resource = _resource(client, target)
        # A broker unsets what it does not know without a word. Of all brokers it tells only what is set.
        unset = [key for key, value in changes.items() if value is None]
        if unset and resource.name and resource.type != ConfigResourceType.BROKER_LOGGER:
            _check_known(resource, unset, _described(client, resource, unset))
        result = client.alter_configs(resource.type, resource.name, changes, validate_only=is_dry)
        _check(client, resource, changes, result)
        if resource.type == ConfigResourceType.BROKER:
            _warn_of_unknown(resource, [key for key, value in changes.items() if value is not None])
        if resource.type == ConfigResourceType.CLIENT_METRICS and len(unset) < len(changes):
            _warn_if_unserved(client, resource)
    would = "would be " if is_dry else ""
    say_each(
        [
            (
                f"{resource.text}: {key} {would}{'unset' if value is None else f'set to {value}'}",
                {"name": key, "value": value, "dry_run": is_dry},
            )
            for key, value in changes.items()
        ],
        as_json=as_json,
    )


def _resource(client: Admin, target: ConfigTarget) -> Resource:
    """Return the resource that the flags name, by default the only broker. Raises CliError."""
    named = [
        Resource(kind, name, f"{word} {name}", keys)
        for kind, word, name, keys in (
            (ConfigResourceType.TOPIC, "topic", target.topic, TOPIC_KEYS),
            (ConfigResourceType.GROUP, "group", target.group, GROUP_KEYS),
            (
                ConfigResourceType.CLIENT_METRICS,
                "client metrics",
                target.client_metrics,
                CLIENT_METRICS_KEYS,
            ),
        )
        if name is not None
    ]
    if len(named) + target.defaults + (target.broker is not None or target.loggers) > 1:
        raise CliError(
            "--topic, --group, --client-metrics, --broker, --broker-defaults, --loggers: "
            "these exclude each other",
            USAGE_ERROR,
        )
    if named:
        return named[0]
    if target.defaults:
        return Resource(ConfigResourceType.BROKER, "", "all brokers", BROKER_KEYS)
    broker = _broker(client, target.broker)
    if target.loggers:
        return Resource(ConfigResourceType.BROKER_LOGGER, str(broker), f"loggers of broker {broker}", ())
    return Resource(ConfigResourceType.BROKER, str(broker), f"broker {broker}", BROKER_KEYS)


def _broker(client: Admin, wanted: int | None) -> int:
    """Return the id of the wanted broker; if `wanted` is None, of the only broker. Raises CliError."""
    ids = client.broker_ids()
    if wanted is None and len(ids) == 1:
        return ids[0]
    if wanted not in ids:
        known_ids = ", ".join(map(str, ids))
        said = "say which broker" if wanted is None else f"--broker {wanted}: there is no such broker"
        raise CliError(f"{said}; there is {known_ids}", USAGE_ERROR)
    return wanted


def _described(
    client: Admin, resource: Resource, keys: Sequence[str]
) -> list[m.DescribeConfigsResponse.DescribeConfigsResourceResult]:
    """Return the settings `keys` of a resource (no keys: all), sorted by name. Raises ApiFailed."""
    result = client.describe_configs(resource.type, resource.name, keys, details=True)
    if result.error_code:
        raise _failed(client, resource, result.error_code, result.error_message)
    return sorted(result.configs, key=lambda entry: entry.name)


def _check_known(
    resource: Resource,
    keys: Sequence[str],
    entries: Sequence[m.DescribeConfigsResponse.DescribeConfigsResourceResult],
) -> None:
    """Check that each key is among the entries of the broker's response. Raises CliError."""
    there = {entry.name for entry in entries}
    if missing := [key for key in keys if key not in there]:
        guess = known.hint(missing, resource.keys)
        raise CliError(f"{resource.text} has no setting {', '.join(missing)}{guess}", USAGE_ERROR)


def _warn_of_unknown(resource: Resource, keys: Sequence[str]) -> None:
    """Warn of unknown keys. The broker stores them without an effect, as Kafka's brokers do."""
    for key in keys:
        if key in resource.keys or known.is_known(key):
            continue
        of_topics = key in TOPIC_KEYS
        advice = "; --topic NAME sets it of a topic" if of_topics else known.hint([key], resource.keys)
        text = f"{key} is stored and has no effect: {resource.text} has no such setting{advice}"
        print(f"mpbroker: {printable(text)}", file=sys.stderr)


def _warn_if_unserved(client: Admin, subscription: Resource) -> None:
    """Warn if clients push nothing to the broker. (Kafka's has no such setting.)"""
    key = "client.telemetry.enable"
    found = client.describe_configs(ConfigResourceType.BROKER, str(client.broker_ids()[0]), [key])
    if any(entry.name == key and entry.value == "false" for entry in found.configs):
        print(f"mpbroker: {printable(subscription.text)}: {TELEMETRY_IS_OFF}", file=sys.stderr)


def _in_effect(
    client: Admin,
    resource: Resource,
    entries: Iterable[m.DescribeConfigsResponse.DescribeConfigsResourceResult],
) -> dict[str, str]:
    """Return the values in effect of a group's settings. The broker bounds what a group sets.

    DescribeConfigs returns what is set, also Kafka's.
    """
    if resource.type != ConfigResourceType.GROUP:
        return {}
    node = client.broker_ids()[0]
    broker = Resource(ConfigResourceType.BROKER, str(node), f"broker {node}", BROKER_KEYS)
    try:
        bounds = {entry.name: entry.value or "" for entry in _described(client, broker, DECIDING)}
    except ApiFailed as error:
        print(f"mpbroker: which values are in effect is unknown: {printable(str(error))}", file=sys.stderr)
        return {}
    own = {entry.name: entry.value or "" for entry in entries if _is_set(resource, entry)}
    return {name: str(value) for name, value in in_effect(own, bounds).items()}


def _is_set(resource: Resource, entry: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> bool:
    """Return whether the resource itself sets the value; for a broker, whether the value is not a default."""
    if resource.type in _OWN_SOURCES:
        return entry.config_source == _OWN_SOURCES[resource.type]
    return entry.config_source != ConfigSource.DEFAULT_CONFIG


def _source(number: int) -> str:
    """Return Kafka's name of a setting's source, or the number as text if it is unknown here."""
    return ConfigSource(number).name if number in ConfigSource.__members__.values() else str(number)


def _value(entry: m.DescribeConfigsResponse.DescribeConfigsResourceResult) -> str | None:
    return HIDDEN if entry.is_sensitive else entry.value


def _document(
    entry: m.DescribeConfigsResponse.DescribeConfigsResourceResult, effective: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        **({"in_effect": effective.get(entry.name)} if effective else {}),
        "source": _source(entry.config_source),
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
        "type": ConfigType(entry.config_type).name
        if entry.config_type in ConfigType.__members__.values()
        else None,
        "synonyms": [
            {"name": one.name, "value": one.value, "source": _source(one.source)} for one in entry.synonyms
        ],
        "documentation": entry.documentation,
    }


def _failed(client: Admin, resource: Resource, code: int, message: str | None) -> ApiFailed:
    if resource.type == ConfigResourceType.TOPIC:
        return client.topic_failed(resource.name, code, message)
    return not_done(resource.text, code, message)


def _check(
    client: Admin,
    resource: Resource,
    keys: Iterable[str],
    result: m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
) -> None:
    if result.error_code:
        error = _failed(client, resource, result.error_code, result.error_message)
        raise with_advice(error, known.hint(keys, resource.keys))
