"""Describes refusals, and acts of administration with their results, for the audit log."""

from __future__ import annotations

from mpbroker.handlers.requests.permissions import Need
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.acls import Acl
from mpbroker.security.audit import Event, Kind, Names, result_of
from mpbroker.security.authorizer import Client, Verdict


def denied(client: Client, listener: str, need: Need, name: str, api_key: int, verdict: Verdict) -> Event:
    """Return the event of a refused permission: client, resource, API, and the entry that refuses it."""
    rule = verdict.rule
    return Event(
        Kind.REFUSAL,
        client.principal,
        client.host,
        listener,
        ApiKey(api_key).name,
        Names.of([(name,)]),
        need=str(need),
        why=str(rule) if isinstance(rule, Acl) else rule.value,
    )


def act_of(client: Client, listener: str, api_key: int, names: Names) -> Event:
    """Return the event of an act of administration, without its result."""
    return Event(Kind.ADMINISTRATION, client.principal, client.host, listener, ApiKey(api_key).name, names)


def with_result(begun: Event, errors: dict[int, int] | None) -> Event:
    """Return the event with the result. `errors`: count of each error code; None: there was no response."""
    return begun._replace(result=result_of(errors))


def as_refusal(begun: Event, why: str) -> Event:
    """Return the event of a refused act. `why` says why the listener forbids the act."""
    return begun._replace(kind=Kind.REFUSAL, why=why)
