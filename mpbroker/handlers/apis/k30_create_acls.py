"""CreateAcls (key 30), versions 1-3: adds access control entries, unless the same entries exist.

The response comes when the entries are durable and all handlers apply them. (Kafka: AclApis.handleCreateAcls,
AclControlManager.createAcls; KIP-140, KIP-290.)
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from msgspec.structs import astuple

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import AlteredResources, CreateAcls
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import CreateAclsResponse
from mpbroker.security.acls import Acl

log = logging.getLogger("mpbroker.handlers")


def all_refused(context: RequestContext, code: ErrorCode, message: str) -> CreateAclsResponse:
    result = CreateAclsResponse.AclCreationResult(code, message)
    return CreateAclsResponse(results=[result] * len(context.body.creations))


def failed(context: RequestContext, code: ErrorCode) -> CreateAclsResponse:
    return all_refused(context, code, code.message)


@api(ApiKey.CREATE_ACLS, 1, 3, name="CreateAcls", failed=failed, elements_max=CHANGES_MAX)
def handle(context: RequestContext) -> Generator[None, None, CreateAclsResponse]:
    """Adds access control entries."""
    if not context.broker.authorization.is_on:
        return all_refused(context, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    asked = [AclImage(*astuple(one)) for one in context.body.creations]
    answer = yield from ask_coordinator(context, CreateAcls(asked), AlteredResources)
    for image, (error, _) in zip(asked, answer.results, strict=True):
        if not error:
            who = context.session.principal
            log.info("%s has asked for an access control entry, which exists now: %s", who, Acl(*image))
    result = CreateAclsResponse.AclCreationResult
    return CreateAclsResponse(results=[result(code, message or "") for code, message in answer.results])
