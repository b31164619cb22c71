"""DescribeClientQuotas (key 48), versions 0-1: the quotas of all entities that a filter matches.

The response comes from this handler's metadata. (Kafka: ClientQuotasImage.describe; KIP-546, KIP-612.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from mpbroker.quotas.entities import CLIENT_ID, IP, USER, Entity, MatchType

Filter = dict[str, tuple[MatchType, str | None]]
_TYPES = {match.value: match for match in MatchType}


class BadFilter(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def refused(code: ErrorCode, message: str | None) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def failed(_context: RequestContext, code: ErrorCode) -> DescribeClientQuotasResponse:
    return refused(code, code.message)


def checked(components: list[DescribeClientQuotasRequest.ComponentData]) -> Filter:
    """Return a request's filter, made from its components. Raises BadFilter if a component is not valid."""
    wanted: Filter = {}
    for component in components:
        kind, how = component.entity_type, _TYPES.get(component.match_type)
        if not kind:
            raise BadFilter(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            text = f"Entity type {kind} cannot appear more than once in the filter."
            raise BadFilter(ErrorCode.INVALID_REQUEST, text)
        if kind not in (USER, CLIENT_ID, IP):
            raise BadFilter(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type: {kind}")
        if how is None:
            raise BadFilter(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if (how is MatchType.EXACT) != (component.match is not None):
            text = f"A match of type {how.name} {'needs a' if how is MatchType.EXACT else 'has no'} name."
            raise BadFilter(ErrorCode.INVALID_REQUEST, text)
        wanted[kind] = how, component.match
    if IP in wanted and len(wanted) > 1:
        text = "An ip in a filter cannot be combined with user or client-id."
        raise BadFilter(ErrorCode.INVALID_REQUEST, text)
    return wanted


def entry(entity: Entity, values: dict[str, float]) -> DescribeClientQuotasResponse.EntryData:
    return DescribeClientQuotasResponse.EntryData(
        [DescribeClientQuotasResponse.EntityData(kind, name) for kind, name in entity],
        [DescribeClientQuotasResponse.ValueData(key, value) for key, value in sorted(values.items())],
    )


@api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, name="DescribeClientQuotas", failed=failed)
def handle(context: RequestContext) -> DescribeClientQuotasResponse:
    """Returns quotas of users, client ids and addresses, by an exact name, the default, or any name."""
    quotas = context.broker.metadata.quotas
    try:
        wanted = checked(context.body.components)
    except BadFilter as error:
        return refused(error.code, str(error))
    found = quotas.matching(wanted, context.body.strict)
    return DescribeClientQuotasResponse(entries=[entry(entity, quotas.of(entity)) for entity in found])
