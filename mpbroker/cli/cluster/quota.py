"""`mpbroker quota`: set, list and delete the quotas of users, client ids and addresses."""

from typing import Annotated, NamedTuple

import typer

from mpbroker.cli.app import App
from mpbroker.cli.cluster.client import open_admin
from mpbroker.cli.errors import USAGE_ERROR, CliError, with_advice
from mpbroker.cli.flags import ClusterAddress, Json, option
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

quota_app = App(no_args_is_help=True)
TYPES = ("user", "client-id", "ip")
Entity = list[tuple[str, str | None]]
"""A quota's owner: (type, name) pairs. The name None means all clients without a quota of their own."""


class Owner(NamedTuple):
    """The flags that name the owner of a quota."""

    user: Annotated[str | None, option("--user", "NAME", "Of this user.")] = None
    client_id: Annotated[
        str | None, option("--client-id", "NAME", "Of this client; with --user of that user's alone.")
    ] = None
    ip: Annotated[str | None, option("--ip", "ADDRESS", "Of this address.")] = None
    defaults: Annotated[
        list[str] | None,
        option(
            "--default", "user|client-id|ip", "Of all without one of their own; repeatable, also with --user."
        ),
    ] = None

    def entity(self) -> Entity:
        """Return the owner as pairs of type and name; the name is None for a default. Raises CliError."""
        names = dict(zip(TYPES, self[:3], strict=True))
        pairs: Entity = [(kind, name) for kind, name in names.items() if name is not None]
        for kind in dict.fromkeys(self.defaults or ()):
            if kind not in TYPES:
                raise CliError(f"--default {kind}: it is one of {', '.join(TYPES)}", USAGE_ERROR)
            if names[kind] is not None:
                raise CliError(f"--default {kind}: a {kind} is named already", USAGE_ERROR)
            pairs.append((kind, None))
        if not pairs:
            raise CliError("say whose quota: --user, --client-id, --ip or --default", USAGE_ERROR)
        return pairs


@quota_app.command("set")
def quota_set(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=NUMBER...", hidden=True)],
    *,
    owner: Owner,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Limit what clients may use.

    QUOTA is producer_byte_rate, consumer_byte_rate, request_percentage or controller_mutation_rate; for
    addresses it is connection_creation_rate.
    """
    entity = owner.entity()
    wanted = dict(map(_parsed, quotas))
    _alter(where, entity, wanted)
    document = {"entity": dict(entity), "quotas": wanted}
    say(f"{entity_text(entity)}: {', '.join(quotas)}", document, as_json=json)


@quota_app.command("list")
def quota_list(*, where: ClusterAddress, json: Json = False) -> None:
    """All quotas that are set."""
    with open_admin(where) as client:
        found = describe_quotas(client)
    if json:
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


@quota_app.command("delete")
def quota_delete(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA...", hidden=True)],
    *,
    owner: Owner,
    where: ClusterAddress,
    json: Json = False,
) -> None:
    """Take a limit away."""
    entity = owner.entity()
    with open_admin(where) as client:
        present = next((set_ for one, set_ in describe_quotas(client) if one == dict(entity)), {})
    if missing := [key for key in quotas if key not in present]:
        guess = known.hint(missing, (*OF_CLIENTS, *OF_ADDRESSES))
        raise CliError(f"{entity_text(entity)} has no {', '.join(missing)}{guess}")
    _alter(where, entity, dict.fromkeys(quotas))
    document = {"entity": dict(entity), "deleted": quotas}
    say(f"{entity_text(entity)}: deleted {', '.join(quotas)}", document, as_json=json)


def describe_quotas(client: Admin) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Return (names by entity type, values by quota) of each entity that has quotas. Raises ApiFailed."""
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


def entity_text(entity: Entity) -> str:
    return ", ".join(f"default {kind}" if name is None else f"{kind} '{name}'" for kind, name in entity)


def _parsed(setting: str) -> tuple[str, float]:
    key, _, value = (part.strip() for part in setting.partition("="))
    try:
        return key, float(value)
    except ValueError:
        raise CliError(f"{setting}: this is not KEY=NUMBER", USAGE_ERROR) from None


def _alter(where: ClusterAddress, entity: Entity, changes: dict[str, float] | dict[str, None]) -> None:
    request = AlterClientQuotasRequest
    parts = [request.EntityData(*part) for part in entity]
    ops = [
        request.OpData(key, 0.0 if value is None else value, value is None) for key, value in changes.items()
    ]
    with open_admin(where) as client:
        response: AlterClientQuotasResponse = client.cluster.ask_any(request([request.EntryData(parts, ops)]))
    (result,) = response.entries
    if result.error_code:
        failed = ApiFailed(entity_text(entity), result.error_code, result.error_message)
        raise with_advice(failed, _advice(entity, list(changes)))


def _advice(entity: Entity, keys: list[str]) -> str:
    """Return advice to append to an error if an address or client cannot have all quotas `keys`, else ""."""
    is_address = any(kind == "ip" for kind, _name in entity)
    theirs = OF_ADDRESSES if is_address else OF_CLIENTS
    if all(key in theirs for key in keys):
        return ""
    owner = "an address" if is_address else "a client"
    return known.hint(keys, theirs) or f"; {owner} has {', '.join(theirs)}"
