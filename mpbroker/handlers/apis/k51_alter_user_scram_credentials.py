"""AlterUserScramCredentials (key 51), version 0: sets and removes users' SCRAM credentials.

A client sends the salted password. The coordinator gets only the keys against which logins are checked. The
response comes when the change is durable and every processor can see it. (Kafka: ScramControlManager;
KIP-554.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.calls import AlterScram, ScramUsers
from mpbroker.ipc.credentials import ScramImage
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AlterUserScramCredentialsRequest as Request
from mpbroker.protocol.messages import AlterUserScramCredentialsResponse as Response
from mpbroker.security.scram import TYPES, credential_of

Result: TypeAlias = Response.AlterUserScramCredentialsResult

_KINDS = {int(kind): kind for kind in TYPES.values()}


def failed(context: RequestContext, code: ErrorCode) -> Response:
    names = [one.name for one in (*context.body.deletions, *context.body.upsertions)]
    return Response(results=[Result(name, code, code.message) for name in dict.fromkeys(names)])


def upsertion(asked: Request.ScramCredentialUpsertion) -> ScramImage:
    """Return the credential to store. For an unknown mechanism it has no keys, and will be refused."""
    kind = _KINDS.get(asked.mechanism)
    if kind is None:
        return ScramImage(asked.name, asked.mechanism, asked.iterations, b"", b"", b"")
    made = credential_of(kind, asked.salted_password, asked.salt, asked.iterations)
    return ScramImage(
        asked.name, asked.mechanism, asked.iterations, asked.salt, made.stored_key, made.server_key
    )


@api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    0,
    0,
    name="AlterUserScramCredentials",
    failed=failed,
    elements_max=CHANGES_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, Response]:
    """Sets and removes SCRAM credentials of users."""
    upsertions = [upsertion(one) for one in context.body.upsertions]
    question = AlterScram(upsertions, [(one.name, one.mechanism) for one in context.body.deletions])
    answer = yield from ask_coordinator(context, question, ScramUsers)
    return Response(results=[Result(u.user, u.error, u.message) for u in answer.users])
