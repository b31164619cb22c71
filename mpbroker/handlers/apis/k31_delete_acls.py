"""DeleteAcls (key 31), versions 1-3: removes the access control entries that filters match, and names them.

The answer comes when the removal is durable and no handler goes by the entries any more. (Kafka:
AclApis.handleDeleteAcls, AclControlManager.deleteAcls; KIP-140, KIP-290.)
"""

from __future__ import annotations

import logging

from mpbroker.handlers.api_parts.acl_fields import filter_in
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import DeleteAcls, DeletedAcls
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteAclsResponse
from mpbroker.security.acls import Acl

log = logging.getLogger("mpbroker.handlers")


def all_refused(exchange: ApiExchange, code: ErrorCode, message: str) -> DeleteAclsResponse:
    result = DeleteAclsResponse.DeleteAclsFilterResult(code, message)
    return DeleteAclsResponse(filter_results=[result] * len(exchange.body.filters))


def failed(exchange: ApiExchange, code: ErrorCode) -> DeleteAclsResponse:
    return all_refused(exchange, code, code.message)


def told(image: AclImage) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(ErrorCode.NONE, None, *image)


def deleted(exchange: ApiExchange, answer: DeletedAcls | Unanswered) -> None:
    if isinstance(answer, Unanswered):
        exchange.fail(answer.code)
        return
    for image in dict.fromkeys(image for one in answer.results for image in one.acls):
        log.info("%s has deleted the access control entry: %s", exchange.session.principal, Acl(*image))
    exchange.reply(
        DeleteAclsResponse(
            filter_results=[
                DeleteAclsResponse.DeleteAclsFilterResult(one.error, one.message, [*map(told, one.acls)])
                for one in answer.results
            ]
        )
    )


@api(ApiKey.DELETE_ACLS, 1, 3, name="DeleteAcls", failed=failed, elements_max=CHANGES_MAX)
def handle(exchange: ApiExchange) -> DeleteAclsResponse | None:
    """Removes access control entries."""
    if not exchange.broker.authorization.is_on:
        return all_refused(exchange, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ask_coordinator(
        exchange,
        DeleteAcls([filter_in(one) for one in exchange.body.filters]),
        DeletedAcls,
        lambda answer: deleted(exchange, answer),
    )
    return None
