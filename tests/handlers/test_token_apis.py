"""The four APIs of delegation tokens: who may ask, what the coordinator is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.config.keys import Secret
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import (
    ChangedToken,
    ChangeToken,
    CreatedToken,
    CreateToken,
    DescribedTokens,
    DescribeTokens,
    TokenDetails,
)
from mpbroker.ipc.session import SecurityProtocol
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    Message,
    RenewDelegationTokenRequest,
)
from mpbroker.security.acls import Operation, PatternType, Permission, ResourceType
from tests.support.handler_rig import Rig, channel_of
from tests.support.handler_rig import rig as make_rig

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
LATEST = {CREATE: 3, RENEW: 2, EXPIRE: 2, DESCRIBE: 3}
REQUESTS: dict[int, Message] = {
    CREATE: CreateDelegationTokenRequest(max_lifetime_ms=-1),
    RENEW: RenewDelegationTokenRequest(b"mac", 5),
    EXPIRE: ExpireDelegationTokenRequest(b"mac", -1),
    DESCRIBE: DescribeDelegationTokenRequest(None),
}
ANN, BOB, EVE = "User:ann", "User:bob", "User:eve"
Renewer = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
CONNECTION = 7
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.fixture(name="guarded")
def _guarded() -> Iterator[Rig]:
    """A handler with permissions and a secret."""
    config = BrokerConfig(
        authorizer_class_name=STANDARD_AUTHORIZER, delegation_token_secret_key=Secret("secret")
    )
    with make_rig(config) as made:
        made.publish()
        yield made


@pytest.fixture(name="plain")
def _plain() -> Iterator[Rig]:
    """A handler without a secret."""
    with make_rig() as made:
        made.publish()
        yield made


def log_in(
    rig: Rig,
    principal: str = ANN,
    protocol: SecurityProtocol = SecurityProtocol.SASL_SSL,
    *,
    by_token: bool = False,
) -> None:
    rig.processor.open_session(CONNECTION, protocol)
    rig.processor.sessions.set(
        channel_of(CONNECTION), CONNECTION, principal=principal, token_authenticated=by_token
    )


def asked(rig: Rig, key: int, body: Message, version: int = 0) -> tuple[Any, Any]:
    call, message = rig.asked(key, version or LATEST[key], body)
    return call, message


def answered(rig: Rig, key: int, call: Any, message: Any, version: int = 0) -> Any:
    rig.reply(call, message)
    return rig.answer(key, version or LATEST[key])


def details(
    token_id: str, owner: str = ANN, requester: str = ANN, renewers: list[str] | None = None
) -> TokenDetails:
    return TokenDetails(token_id, owner, requester, renewers or [], 1, 2, 3, token_id.encode())


@pytest.mark.parametrize(
    ("protocol", "principal", "by_token", "may_ask"),
    [
        (SecurityProtocol.PLAINTEXT, ANN, False, False),
        (SecurityProtocol.SSL, "User:ANONYMOUS", False, False),
        (SecurityProtocol.SSL, ANN, False, True),
        (SecurityProtocol.SASL_SSL, ANN, True, False),
        (SecurityProtocol.SASL_PLAINTEXT, ANN, True, False),
        (SecurityProtocol.SASL_PLAINTEXT, ANN, False, True),
    ],
)
def test_who_may_ask(
    guarded: Rig, protocol: SecurityProtocol, principal: str, by_token: bool, may_ask: bool
) -> None:
    log_in(guarded, principal, protocol, by_token=by_token)
    for key, body in REQUESTS.items():
        if may_ask:
            asked(guarded, key, body)
        else:
            assert guarded.ask(key, LATEST[key], body).error_code == NOT_ALLOWED


def test_a_token_of_ones_own(guarded: Rig) -> None:
    log_in(guarded)
    body = CreateDelegationTokenRequest("", "", [Renewer("User", "bob")], 1000)
    call, message = asked(guarded, CREATE, body)
    assert message == CreateToken(ANN, ANN, [BOB], 1000)
    made = TokenDetails("id", ANN, ANN, [BOB], 1, 2, 3, b"mac")
    answer = answered(guarded, CREATE, call, CreatedToken(token=made))
    assert (answer.error_code, answer.token_id, answer.hmac) == (0, "id", b"mac")
    assert (answer.principal_type, answer.principal_name) == ("User", "ann")
    assert (answer.token_requester_principal_type, answer.token_requester_principal_name) == ("User", "ann")
    assert (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms) == (1, 2, 3)


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_name_no_owner(guarded: Rig, version: int) -> None:
    log_in(guarded)
    call, message = asked(guarded, CREATE, CreateDelegationTokenRequest(max_lifetime_ms=-1), version)
    assert message == CreateToken(ANN, ANN, [], -1)
    assert answered(guarded, CREATE, call, CreatedToken(token=details("id")), version).token_id == "id"


def test_a_token_for_another_owner_needs_a_permission(guarded: Rig) -> None:
    log_in(guarded)
    body = CreateDelegationTokenRequest("User", "bob", [], -1)
    answer = guarded.ask(CREATE, 3, body)
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (answer.principal_name, answer.token_requester_principal_name) == ("bob", "ann")
    allow(guarded, ResourceType.USER, BOB, Operation.CREATE_TOKENS)
    _, message = asked(guarded, CREATE, body)
    assert message == CreateToken(BOB, ANN, [], -1)


def allow(rig: Rig, kind: ResourceType, name: str, operation: Operation) -> None:
    rig.publish(acls=[AclImage(kind, name, PatternType.LITERAL, ANN, "*", operation, Permission.ALLOW)])


@pytest.mark.parametrize(
    ("renewer", "code"),
    [
        (Renewer("Group", "x"), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (Renewer("User", ""), ErrorCode.INVALID_REQUEST),
        (Renewer("User", "a\0b"), ErrorCode.INVALID_REQUEST),
        (Renewer("User", "x" * 2000), ErrorCode.INVALID_REQUEST),
    ],
)
def test_renewers_are_users_that_can_log_in(guarded: Rig, renewer: Renewer, code: ErrorCode) -> None:
    log_in(guarded)
    answer = guarded.ask(CREATE, 3, CreateDelegationTokenRequest("", "", [renewer], -1))
    assert (answer.error_code, answer.issue_timestamp_ms) == (code, -1)


@pytest.mark.parametrize("code", [ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, ErrorCode.POLICY_VIOLATION])
def test_what_the_coordinator_refuses(guarded: Rig, code: ErrorCode) -> None:
    log_in(guarded)
    call, _ = asked(guarded, CREATE, REQUESTS[CREATE])
    answer = answered(guarded, CREATE, call, CreatedToken(code))
    assert (answer.error_code, answer.token_id, answer.hmac) == (code, "", b"")
    assert (answer.principal_name, answer.token_requester_principal_name) == ("ann", "ann")


@pytest.mark.parametrize(("key", "expires"), [(RENEW, False), (EXPIRE, True)])
def test_renewals_and_expiries(guarded: Rig, key: int, expires: bool) -> None:
    log_in(guarded, EVE)
    call, message = asked(guarded, key, REQUESTS[key])
    assert message == ChangeToken(b"mac", EVE, -1 if expires else 5, expires)
    answer = answered(guarded, key, call, ChangedToken(expires_ms=9, token_id="id"))
    assert (answer.error_code, answer.expiry_timestamp_ms) == (0, 9)
    call, _ = asked(guarded, key, REQUESTS[key])
    answer = answered(guarded, key, call, ChangedToken(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH))
    refused = (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    assert (answer.error_code, answer.expiry_timestamp_ms) == refused


@pytest.mark.parametrize(
    ("owners", "names"), [(None, None), ([Owner("User", "bob"), Owner("Group", "x")], [BOB, "Group:x"])]
)
def test_owners_that_are_asked_for(guarded: Rig, owners: list[Owner] | None, names: list[str] | None) -> None:
    log_in(guarded)
    _, message = asked(guarded, DESCRIBE, DescribeDelegationTokenRequest(owners))
    assert message == DescribeTokens(names)


def test_no_owner_has_no_token(guarded: Rig) -> None:
    log_in(guarded)
    answer = guarded.ask(DESCRIBE, 3, DescribeDelegationTokenRequest([]))
    assert (answer.error_code, answer.tokens) == (0, [])


def test_a_description_is_asked_for_in_pieces(guarded: Rig) -> None:
    log_in(guarded)
    call, _ = asked(guarded, DESCRIBE, REQUESTS[DESCRIBE])
    mine = [details("a"), details("b", BOB, ANN), details("c", BOB, BOB, [EVE, ANN])]
    guarded.reply(call, DescribedTokens(tokens=[*mine, details("d", BOB, BOB)], are_all=False))
    ((call, message),) = guarded.coordinator.take()
    assert message == DescribeTokens(None, "d")
    again = [details("b", BOB, ANN), details("e")]
    answer = answered(guarded, DESCRIBE, call, DescribedTokens(tokens=again))
    assert [one.token_id for one in answer.tokens] == ["a", "b", "c", "e"]
    third = answer.tokens[2]
    assert (third.principal_name, third.token_requester_principal_name, third.hmac) == ("bob", "bob", b"c")
    assert [(one.principal_type, one.principal_name) for one in third.renewers] == [
        ("User", "eve"),
        ("User", "ann"),
    ]
    assert (third.issue_timestamp, third.expiry_timestamp, third.max_timestamp) == (1, 2, 3)


@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [
        (ResourceType.DELEGATION_TOKEN, "d", Operation.DESCRIBE),
        (ResourceType.USER, BOB, Operation.DESCRIBE_TOKENS),
    ],
)
def test_others_tokens_are_described_by_permission(
    guarded: Rig, kind: ResourceType, name: str, operation: Operation
) -> None:
    allow(guarded, kind, name, operation)
    log_in(guarded)
    call, _ = asked(guarded, DESCRIBE, REQUESTS[DESCRIBE])
    theirs = [details("d", BOB, BOB), details("e", EVE, EVE)]
    answer = answered(guarded, DESCRIBE, call, DescribedTokens(tokens=theirs))
    assert [one.token_id for one in answer.tokens] == ["d"]


def test_without_a_secret_nothing_is_described(plain: Rig) -> None:
    log_in(plain)
    answer = plain.ask(DESCRIBE, 3, DescribeDelegationTokenRequest([]))
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


@pytest.mark.parametrize("key", REQUESTS)
def test_without_a_coordinator_the_client_asks_again(guarded: Rig, key: int) -> None:
    log_in(guarded)
    guarded.coordinator_dies()
    answer = guarded.ask_in_vain(key, LATEST[key], REQUESTS[key])
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
