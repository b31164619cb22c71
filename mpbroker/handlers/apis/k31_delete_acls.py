"""DeleteAcls (key 31), versions 1-3: removes and returns the access control entries that filters match.

The response comes when the removal is durable and no handler uses the entries. (Kafka:
AclApis.handleDeleteAcls, AclControlManager.deleteAcls; KIP-140, KIP-290.)
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from msgspec.structs import astuple

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.acls import AclFilterImage, AclImage
from mpbroker.ipc.calls import DeleteAcls, DeletedAcls
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteAclsResponse
from mpbroker.security.acls import Acl

log = logging.getLogger("mpbroker.handlers")


def all_refused(context: RequestContext, code: ErrorCode, message: str) -> DeleteAclsResponse:
    result = DeleteAclsResponse.DeleteAclsFilterResult(code, message)
    return DeleteAclsResponse(filter_results=[result] * len(context.body.filters))


def failed(context: RequestContext, code: ErrorCode) -> DeleteAclsResponse:
    return all_refused(context, code, code.message)


def matching(image: AclImage) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(ErrorCode.NONE, None, *image)


@api(ApiKey.DELETE_ACLS, 1, 3, name="DeleteAcls", failed=failed, elements_max=CHANGES_MAX)
def handle(context: RequestContext) -> Generator[None, None, DeleteAclsResponse]:
    """Removes access control entries."""
    if not context.broker.authorization.is_on:
        return all_refused(context, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    question = DeleteAcls([AclFilterImage(*astuple(one)) for one in context.body.filters])
    answer = yield from ask_coordinator(context, question, DeletedAcls)
    for image in dict.fromkeys(image for one in answer.results for image in one.acls):
        log.info("%s has deleted the access control entry: %s", context.session.principal, Acl(*image))
    result = DeleteAclsResponse.DeleteAclsFilterResult
    return DeleteAclsResponse(
        filter_results=[result(one.error, one.message, [*map(matching, one.acls)]) for one in answer.results]
    )
