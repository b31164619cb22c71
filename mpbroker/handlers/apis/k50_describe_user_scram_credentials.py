"""DescribeUserScramCredentials (key 50), version 0: users, and the mechanisms of their credentials.

A null or empty list means all users. (Kafka: ScramImage.describe; KIP-554.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.api_parts.coordinator_questions import ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.calls import DescribeScram, ScramUsers
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeUserScramCredentialsResponse as Response


def failed(_context: RequestContext, code: ErrorCode) -> Response:
    return Response(error_code=code, error_message=code.message)


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    0,
    0,
    name="DescribeUserScramCredentials",
    failed=failed,
    elements_max=CHANGES_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, Response]:
    """Returns users with SCRAM credentials, their mechanisms and iterations."""
    users = context.body.users
    question = DescribeScram([one.name for one in users] if users else None)
    answer = yield from ask_coordinator(context, question, ScramUsers)
    results = [
        Response.DescribeUserScramCredentialsResult(
            user.user,
            user.error,
            user.message or "",
            [Response.CredentialInfo(*one) for one in user.credentials],
        )
        for user in answer.users
    ]
    return Response(results=results)
