"""`mpbroker quota`: set, list and delete the quotas of users, client ids and addresses."""

from typing import NamedTuple

from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, with_advice
from mpbroker.cli.flags import ClusterAddress
from mpbroker.cli.text.output import print_json, print_table, say
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed
from mpbroker.config import known
from mpbroker.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from mpbroker.quotas.entities import OF_ADDRESSES, OF_CLIENTS

TYPES = ("user", "client-id", "ip")


class QuotaEntity(NamedTuple):
    """The owner of a quota. `defaults`: types that stand for all clients without a quota of their own."""

    user: str | None
    client_id: str | None
    ip: str | None
    defaults: list[str]

    def entity(self) -> list[tuple[str, str | None]]:
        names = dict(zip(TYPES, (self.user, self.client_id, self.ip), strict=True))
        pairs: list[tuple[str, str | None]] = [
            (kind, name) for kind, name in names.items() if name is not None
        ]
        for kind in dict.fromkeys(self.defaults):
            if kind not in TYPES:
                raise CliError(f"--default {kind}: it is one of {', '.join(TYPES)}", USAGE_ERROR)
            if names[kind] is not None:
                raise CliError(f"--default {kind}: a {kind} is named already", USAGE_ERROR)
            pairs.append((kind, None))
        if not pairs:
            raise CliError("say whose quota: --user, --client-id, --ip or --default", USAGE_ERROR)
        return pairs


def set_quotas(where: ClusterAddress, whom: QuotaEntity, settings: list[str], *, as_json: bool) -> None:
    """Set quotas. `settings` are KEY=NUMBER."""
    wanted = dict(_parsed(setting) for setting in settings)
    _alter(where, whom, wanted)
    document = {"entity": dict(whom.entity()), "quotas": wanted}
    say(f"{entity_text(whom.entity())}: {', '.join(settings)}", document, as_json=as_json)


def delete_quotas(where: ClusterAddress, whom: QuotaEntity, keys: list[str], *, as_json: bool) -> None:
    with open_admin(where) as client:
        present = next(
            (quotas for entity, quotas in describe_quotas(client) if entity == dict(whom.entity())), {}
        )
    if missing := [key for key in keys if key not in present]:
        guess = known.hint(missing, (*OF_CLIENTS, *OF_ADDRESSES))
        raise CliError(f"{entity_text(whom.entity())} has no {', '.join(missing)}{guess}")
    _alter(where, whom, dict.fromkeys(keys))
    document = {"entity": dict(whom.entity()), "deleted": keys}
    say(f"{entity_text(whom.entity())}: deleted {', '.join(keys)}", document, as_json=as_json)


def show_list(where: ClusterAddress, *, as_json: bool) -> None:
    """Print all quotas that are set."""
    with open_admin(where) as client:
        found = describe_quotas(client)
    if as_json:
        print_json([{"entity": entity, "quotas": quotas} for entity, quotas in found])
        return
    table = [
        (entity_text(list(entity.items())), key, f"{value:g}" if value % 1 else f"{value:.0f}")
        for entity, quotas in found
        for key, value in quotas.items()
    ]
    if table:
        print_table(("of", "quota", "value"), sorted(table))
    else:
        print("no quotas")


def describe_quotas(client: Admin) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Return (entity, its quotas) of all entities. Raises ApiFailed."""
    response: DescribeClientQuotasResponse = client.cluster.ask_any(DescribeClientQuotasRequest([], False))
    if response.error_code:
        raise ApiFailed("quotas", response.error_code, response.error_message)
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or []
    ]


def _parsed(setting: str) -> tuple[str, float]:
    key, _, value = (part.strip() for part in setting.partition("="))
    try:
        return key, float(value)
    except ValueError:
        raise CliError(f"{setting}: this is not KEY=NUMBER", USAGE_ERROR) from None


def _alter(where: ClusterAddress, whom: QuotaEntity, changes: dict[str, float] | dict[str, None]) -> None:
    entity = [AlterClientQuotasRequest.EntityData(kind, name) for kind, name in whom.entity()]
    ops = [
        AlterClientQuotasRequest.OpData(key, 0.0 if value is None else value, value is None)
        for key, value in changes.items()
    ]
    with open_admin(where) as client:
        response: AlterClientQuotasResponse = client.cluster.ask_any(
            AlterClientQuotasRequest([AlterClientQuotasRequest.EntryData(entity, ops)])
        )
    (result,) = response.entries
    if result.error_code:
        failed = ApiFailed(entity_text(whom.entity()), result.error_code, result.error_message)
        raise with_advice(failed, _advice(whom, list(changes)))


def _advice(whom: QuotaEntity, keys: list[str]) -> str:
    """Return the end of a sentence if one of the keys is no quota of this owner."""
    is_address = any(kind == "ip" for kind, _name in whom.entity())
    theirs = OF_ADDRESSES if is_address else OF_CLIENTS
    if all(key in theirs for key in keys):
        return ""
    owner = "an address" if is_address else "a client"
    return known.hint(keys, theirs) or f"; {owner} has {', '.join(theirs)}"


def entity_text(entity: list[tuple[str, str | None]]) -> str:
    return ", ".join(f"default {kind}" if name is None else f"{kind} '{name}'" for kind, name in entity)
