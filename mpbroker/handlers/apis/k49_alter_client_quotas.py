"""AlterClientQuotas (key 49), versions 0-1: sets and removes quotas, or only validates the request.

The coordinator decides, and answers when the change is durable and published. An `ip` must be an address, not
a host name, since resolving a name may take long.
(Kafka: ControllerApis.handleAlterClientQuotas; KIP-546.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import repeat

from mpbroker.handlers.api_parts.coordinator_questions import try_ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.calls import AlteredQuotas, AlterQuotas, QuotaAlteration
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AlterClientQuotasRequest, AlterClientQuotasResponse
from mpbroker.quotas.entities import InvalidQuota

Result = tuple[int, str | None]


def answer(context: RequestContext, results: list[Result]) -> AlterClientQuotasResponse:
    entries = []
    for asked, (code, message) in zip(context.body.entries, results, strict=True):
        entity = [AlterClientQuotasResponse.EntityData(e.entity_type, e.entity_name) for e in asked.entity]
        entries.append(AlterClientQuotasResponse.EntryData(code, message, entity))
    return AlterClientQuotasResponse(entries=entries)


def failed(context: RequestContext, code: ErrorCode) -> AlterClientQuotasResponse:
    return answer(context, [(code, code.message)] * len(context.body.entries))


def alteration(entry: AlterClientQuotasRequest.EntryData) -> QuotaAlteration:
    """Return the alteration of one entity. Raises InvalidQuota if a quota is given more than once."""
    entity = [(e.entity_type, e.entity_name) for e in entry.entity]
    changes: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise InvalidQuota(f"Quota {op.key} is given more than once")
        changes[op.key] = None if op.remove else op.value
    return QuotaAlteration(entity, changes)


@api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, name="AlterClientQuotas", failed=failed, elements_max=CHANGES_MAX)
def handle(context: RequestContext) -> Generator[None, None, AlterClientQuotasResponse]:
    """Sets and removes quotas of users, client ids and addresses."""
    results: list[Result | None] = []
    good: list[QuotaAlteration] = []
    for entry in context.body.entries:
        try:
            good.append(alteration(entry))
            results.append(None)
        except InvalidQuota as error:
            results.append((ErrorCode.INVALID_REQUEST, str(error)))
    outcomes: Iterator[Result] = iter(())
    if good:
        question = AlterQuotas(good, context.body.validate_only)
        found = yield from try_ask_coordinator(context, question, AlteredQuotas)
        if isinstance(found, AlteredQuotas):
            outcomes = iter(found.results)
        else:
            outcomes = repeat((int(found.code), found.message))
    return answer(context, [next(outcomes) if one is None else one for one in results])
