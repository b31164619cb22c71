"""DescribeUserScramCredentials (key 50), version 0: the users with credentials, and for which mechanisms.

No list, or an empty one, means all users. (Kafka: ScramImage.describe; KIP-554.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.ipc.calls import DescribeScram, ScramUsers
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeUserScramCredentialsResponse as Response


def failed(_exchange: ApiExchange, code: ErrorCode) -> Response:
    return Response(error_code=code, error_message=code.message)


def described(exchange: ApiExchange, answer: ScramUsers | Unanswered) -> None:
    if isinstance(answer, Unanswered):
        exchange.fail(answer.code)
        return
    results = [
        Response.DescribeUserScramCredentialsResult(
            user.user,
            user.error,
            user.message or "",
            [Response.CredentialInfo(*one) for one in user.credentials],
        )
        for user in answer.users
    ]
    exchange.reply(Response(results=results))


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    0,
    0,
    name="DescribeUserScramCredentials",
    failed=failed,
    elements_max=CHANGES_MAX,
)
def handle(exchange: ApiExchange) -> None:
    """Users with SCRAM credentials, their mechanisms and iterations."""
    users = exchange.body.users
    ask_coordinator(
        exchange,
        DescribeScram([one.name for one in users] if users else None),
        ScramUsers,
        lambda answer: described(exchange, answer),
    )
