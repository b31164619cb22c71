"""CreateAcls (key 30), versions 1-3: adds access control entries; one that is there already is added again.

The answer comes when the entries are durable and all handlers go by them. (Kafka: AclApis.handleCreateAcls,
AclControlManager.createAcls; KIP-140, KIP-290.)
"""

from __future__ import annotations

import logging

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import AlteredResources, CreateAcls
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import CreateAclsResponse
from mpbroker.security.acls import Acl

log = logging.getLogger("mpbroker.handlers")


def all_refused(exchange: ApiExchange, code: ErrorCode, message: str) -> CreateAclsResponse:
    result = CreateAclsResponse.AclCreationResult(code, message)
    return CreateAclsResponse(results=[result] * len(exchange.body.creations))


def failed(exchange: ApiExchange, code: ErrorCode) -> CreateAclsResponse:
    return all_refused(exchange, code, code.message)


def created(exchange: ApiExchange, asked: list[AclImage], answer: AlteredResources | Unanswered) -> None:
    if isinstance(answer, Unanswered):
        exchange.fail(answer.code)
        return
    for image, (error, _) in zip(asked, answer.results, strict=True):
        if not error:
            who = exchange.session.principal
            log.info("%s has asked for an access control entry, which is there now: %s", who, Acl(*image))
    exchange.reply(
        CreateAclsResponse(
            results=[
                CreateAclsResponse.AclCreationResult(code, message or "") for code, message in answer.results
            ]
        )
    )


@api(ApiKey.CREATE_ACLS, 1, 3, name="CreateAcls", failed=failed, elements_max=CHANGES_MAX)
def handle(exchange: ApiExchange) -> CreateAclsResponse | None:
    """Adds access control entries."""
    if not exchange.broker.authorization.is_on:
        return all_refused(exchange, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    asked = [
        AclImage(
            one.resource_type,
            one.resource_name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in exchange.body.creations
    ]
    ask_coordinator(
        exchange, CreateAcls(asked), AlteredResources, lambda answer: created(exchange, asked, answer)
    )
    return None
