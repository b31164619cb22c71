"""JoinGroup (key 11), versions 0-9: a client joins a group, or stays a member in its next generation.

The response comes when the group has a new generation, which may take as long as its rebalance timeout. The
leader's response has all members. (Kafka: GroupCoordinatorService.joinGroup; KIP-62, KIP-345, KIP-394,
KIP-559 and KIP-814.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.group_sizes import is_too_large
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import JoinGroupResponse
from mpbroker.protocol.version_rules import in_version

# Protocols of one member; clients have two or three.
PROTOCOLS_MAX = 1_000


def refusal(context: RequestContext) -> JoinGroupResponse | None:
    """Return an error response, with an empty member id, if the request is too large; else None."""
    if not is_too_large(context):
        return None
    response = JoinGroupResponse(error_code=ErrorCode.MESSAGE_TOO_LARGE)
    refused: JoinGroupResponse = in_version(ApiKey.JOIN_GROUP, context.version, response)
    return refused


def failed(context: RequestContext, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=context.body.member_id)


@api(
    ApiKey.JOIN_GROUP,
    0,
    9,
    name="JoinGroup",
    failed=failed,
    is_forwarded=True,
    elements_max=PROTOCOLS_MAX,
    refusal=refusal,
)
def handle(context: RequestContext) -> None:
    """Makes the client a member of a group, and waits for the group's next generation."""
    context.broker.forwarding.pass_on(context)
