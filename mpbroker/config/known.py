"""Keys that Kafka 4.3 or older has and this broker lacks: they are refused or warned about, never ignored.

A setting is refused if it would change permissions, or a limit that an operator relies on: if the broker
started and ignored the setting, that would look like success. All other settings, and any setting whose value
is Kafka's default, only get a warning. `kafka_keys.json` has the defaults of all keys of Kafka, also of those
that this broker supports. For the keys in Kafka 4.3's DescribeConfigs it also has type, bounds, and whether
clients may alter the key.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mpbroker.config.broker import BROKER_KEYS
from mpbroker.config.keys import ConfigType, Key

# Old or second names of keys that are supported under another one.
ALIASES = {"log.dir": "log.dirs", "broker.id": "node.id"}
HANDLED = ("controller.listener.names", "process.roles")

_NOT_OURS = "TLS and SASL here have no such setting"
_PLUGINS = "Java plug-ins cannot be loaded"
REFUSED: dict[str, str] = {
    "ssl.": _NOT_OURS,
    "sasl.": _NOT_OURS,
    "security.": _NOT_OURS,
    "listener.name.": "this setting cannot be given for a single listener",
    "principal.builder.class": _PLUGINS,
    "delegation.token.": "delegation tokens have delegation.token.secret.key, .max.lifetime.ms, "
    ".expiry.time.ms and .expiry.check.interval.ms alone",
    "client.quota.callback.class": _PLUGINS,
    "create.topic.policy.class.name": _PLUGINS,
    "alter.config.policy.class.name": _PLUGINS,
    "config.providers": _PLUGINS,
    "cordoned.log.dirs": "log directories cannot be cordoned yet",
    "remote.log.storage.manager.class.": f"{_PLUGINS}; set mpbroker.remote.url",
    "remote.log.metadata.manager.class.": f"{_PLUGINS}; the object store itself has the metadata",
}

_COORDINATOR = "the group coordinator is one process here"
_TRANSACTIONS = "the transaction coordinator is one process here, without replicas"
_SINGLE_NODE = "this broker is a single node without replicas"
_METRICS = "metrics are not reported through Java classes"
_PROVIDERS = "OpenSSL is used, not Java's providers"
HARMLESS: dict[str, str] = {
    "ssl.protocol": "ssl.enabled.protocols lists the accepted versions",
    **dict.fromkeys(("ssl.provider", "ssl.secure.random.implementation"), _PROVIDERS),
    **dict.fromkeys(("ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"), _PROVIDERS),
    "ssl.endpoint.identification.algorithm": "it is about connections that a broker makes",
    "sasl.mechanism.inter.broker.protocol": _SINGLE_NODE,
    "security.inter.broker.protocol": _SINGLE_NODE,
    **{
        f"sasl.kerberos.{name}": "SASL GSSAPI is not built"
        for name in (
            *("kinit.cmd", "min.time.before.relogin", "principal.to.local.rules", "service.name"),
            *("ticket.renew.jitter", "ticket.renew.window.factor"),
        )
    },
    **{
        f"sasl.login.refresh.{name}": "it is about logins of a broker to others"
        for name in ("buffer.seconds", "min.period.seconds", "window.factor", "window.jitter")
    },
    "remote.log.index.file.cache.total.size.bytes": "mpbroker.remote.cache.bytes is the size of the cache",
}
WARNED: dict[str, str] = {
    "group.share.": "share groups are not built yet",
    "group.streams.": "streams groups are not built yet",
    "group.coordinator.": _COORDINATOR,
    "offsets.": _COORDINATOR,
    "transaction.two.phase.": "transactions of two phases (KIP-939) are not built",
    "transaction": _TRANSACTIONS,
    "add.partitions.to.txn.": _TRANSACTIONS,
    "share.": "share groups are not built yet",
    "controller.quorum.": _SINGLE_NODE,
    "remote.log.manager.": "one process copies, fetches and removes remote segments",
    "remote.": "Java plug-ins cannot be loaded, and the object store itself has the metadata",
    "replica.": _SINGLE_NODE,
    "num.replica.": _SINGLE_NODE,
    "inter.broker.": _SINGLE_NODE,
    "zookeeper.": "this broker has no ZooKeeper",
    "log.cleaner.": "one process compacts all topics",
    "metric": _METRICS,
    "kafka.metrics.": _METRICS,
}
_NO_EFFECT = "this broker has no such setting"


def is_known(key: str) -> bool:
    """Return whether Kafka has a setting with this key, or the key begins with `listener.name.<name>.`."""
    return key in kafka_defaults() or re.match(r"listener\.name\.[^.]+\.", key) is not None


def refusal(key: str, value: str) -> str | None:
    """Return why a start with this value must be refused, or None if a warning is enough."""
    if key in HARMLESS or value == (kafka_defaults().get(key) or ""):
        return None
    return _reason(REFUSED, key)


def no_effect(key: str) -> str:
    """Return why the setting has no effect in this broker."""
    return HARMLESS.get(key) or _reason(REFUSED, key) or _reason(WARNED, key) or _NO_EFFECT


def nearest(key: str) -> str | None:
    """Return a key that is close to a misspelt key: a supported key, or else a key of Kafka, or else None."""
    supported = [*BROKER_KEYS, *ALIASES]
    for candidates in (supported, list(kafka_defaults())):
        if found := closest(key.lower().replace("_", "."), candidates):
            return found
    return None


def is_misspelt(key: str) -> bool:
    """Return whether an unknown key is so likely a misspelt supported key that it must be refused.

    Such a key differs from a supported key by at most two letters, is close to a key that only this broker
    has, or begins with a prefix in REFUSED, such as `ssl.`.
    """
    if _reason(REFUSED, key) is not None:
        return True
    plain = key.lower().replace("_", ".")
    supported = [*BROKER_KEYS, *ALIASES]
    if any(_is_within_two_edits(plain, name) for name in supported):
        return True
    return closest(plain, [name for name in supported if name not in kafka_defaults()]) is not None


def _is_within_two_edits(one: str, other: str) -> bool:
    """Return whether at most two insertions, deletions or replacements of letters turn `one` into `other`."""
    if abs(len(one) - len(other)) > 2:
        return False
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, theirs in enumerate(other, 1):
            cheapest = min(above[column] + 1, here[column - 1] + 1, above[column - 1] + (letter != theirs))
            here.append(cheapest)
        if min(here) > 2:
            return False
        above = here
    return above[-1] <= 2


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is closest to a misspelt name, or None if none is close."""
    import difflib  # only for a name that is wrong

    return next(iter(difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.75)), None)


def hint(names: Iterable[str], candidates: Iterable[str]) -> str:
    """Return "; did you mean …?" for the first unknown name with a close candidate, or ""."""
    known_names = list(candidates)
    unknown = (name for name in names if name not in known_names)
    guess = next(filter(None, (closest(name.lower(), known_names) for name in unknown)), None)
    return f"; did you mean {guess}?" if guess else ""


def _reason(table: dict[str, str], key: str) -> str | None:
    return next((reason for prefix, reason in table.items() if key.startswith(prefix)), None)


@cache
def _kafka() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "kafka_keys.json").read_text())
    return found


@cache
def kafka_defaults() -> dict[str, str | None]:
    """Return the defaults of all of Kafka's settings, as texts by key."""
    return {name: one["default"] if isinstance(one, dict) else one for name, one in _kafka().items()}


@cache
def kafka_keys() -> dict[str, Key]:
    """Return the broker settings that DescribeConfigs of Kafka 4.3 shows, by key. Defaults are texts."""
    return {name: _key(name, one) for name, one in _kafka().items() if isinstance(one, dict)}


def _key(name: str, one: dict[str, Any]) -> Key:
    return Key(
        ConfigType[one["type"]],
        f"No effect here: {no_effect(name)}.",
        name,
        one["default"],
        one.get("at_least"),
        one.get("at_most"),
        tuple(one.get("choices", ())),
    )


def is_dynamic(name: str) -> bool:
    """Return whether Kafka lets clients alter the setting."""
    return "dynamic" in (_kafka().get(name) or "")


def is_of_one_broker(name: str) -> bool:
    """Return whether clients may alter the setting for a single broker only, not for all brokers at once."""
    return is_dynamic(name) and _kafka()[name]["dynamic"] == "per-broker"
