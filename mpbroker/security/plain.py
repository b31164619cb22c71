"""SASL PLAIN (RFC 4616; Kafka's PlainSaslServer): the client sends one message with user and password."""

from __future__ import annotations

from typing import ClassVar

from mpbroker.security.jaas import PlainUsers
from mpbroker.security.mechanism import Mechanism, SaslFailed
from mpbroker.security.principals import Principal

FIELDS = 3


class PlainServer(Mechanism):
    name: ClassVar[str] = "PLAIN"

    def __init__(self, users: PlainUsers) -> None:
        super().__init__()
        self._users = users

    def step(self, token: bytes) -> bytes:
        try:
            fields = token.decode("utf-8").split("\0")
        except UnicodeDecodeError as error:
            raise SaslFailed("the message is not UTF-8") from error
        if len(fields) != FIELDS:
            shown = f"Invalid SASL/PLAIN response: expected {FIELDS} tokens, got {len(fields)}"
            raise SaslFailed(shown, shown)
        authorization_id, user, password = fields
        if not user:
            raise SaslFailed("no user name", "Authentication failed: username not specified")
        self.claimed = user
        if not password:
            raise SaslFailed("no password", "Authentication failed: password not specified")
        if not self._users.check(user, password):
            raise SaslFailed(
                "invalid user name or password", "Authentication failed: Invalid username or password"
            )
        if authorization_id not in ("", user):
            raise SaslFailed(
                "the client asked for another user's authorization id",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        self.principal = Principal(user)
        return b""
