"""SASL requests that reach a handler, and the two APIs of SCRAM credentials."""

from __future__ import annotations

import pytest

from mpbroker.ipc.calls import AlterScram, DescribeScram, ScramUser, ScramUsers
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.scram import ScramType, credential_of
from tests.support.handler_rig import Rig, topic_image

SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE, ALTER = 17, 36, 50, 51
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion


READY = (topic_image("orders", 1),)


def test_sasl_after_authentication_is_an_illegal_state(ready: Rig) -> None:
    answer = ready.ask(SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = ready.ask(SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(b"\0ann\0secret"))
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_credentials_are_altered_without_the_salted_password(ready: Rig) -> None:
    salted = b"salted password."
    body = AlterUserScramCredentialsRequest(
        [Deletion("bob", 1)], [Upsertion("ann", 2, 4096, b"salt", salted), Upsertion("eve", 9, 1, b"", b"")]
    )
    call, message = ready.asked(ALTER, 0, body)
    assert isinstance(message, AlterScram)
    assert message.deletions == [("bob", 1)]
    ann, eve = message.upsertions
    made = credential_of(ScramType.SCRAM_SHA_512, salted, b"salt", 4096)
    assert (ann.stored_key, ann.server_key, ann.salt) == (made.stored_key, made.server_key, b"salt")
    assert (eve.mechanism, eve.stored_key) == (9, b"")
    assert salted not in repr(message).encode()
    ready.reply(call, ScramUsers([ScramUser("bob", 91, "gone"), ScramUser("ann")]))
    answer = ready.answer(ALTER, 0)
    assert [(r.user, r.error_code, r.error_message) for r in answer.results] == [
        ("bob", 91, "gone"),
        ("ann", 0, None),
    ]


@pytest.mark.parametrize(("users", "asked"), [(None, None), ([], None), (["ann"], ["ann"])])
def test_credentials_are_described(ready: Rig, users: list[str] | None, asked: list[str] | None) -> None:
    names = None if users is None else [DescribeUserScramCredentialsRequest.UserName(u) for u in users]
    call, message = ready.asked(DESCRIBE, 0, DescribeUserScramCredentialsRequest(names))
    assert message == DescribeScram(asked)
    ready.reply(call, ScramUsers([ScramUser("ann", credentials=[(2, 4096)])]))
    (result,) = ready.answer(DESCRIBE, 0).results
    assert [(c.mechanism, c.iterations) for c in result.credential_infos] == [(2, 4096)]


def test_without_a_coordinator_the_client_asks_again(ready: Rig) -> None:
    ready.coordinator_dies()
    answer = ready.ask_in_vain(ALTER, 0, AlterUserScramCredentialsRequest([Deletion("bob", 1)], []))
    assert [r.error_code for r in answer.results] == [ErrorCode.NOT_CONTROLLER]
    answer = ready.ask_in_vain(DESCRIBE, 0, DescribeUserScramCredentialsRequest(None))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
