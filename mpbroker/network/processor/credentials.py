"""A processor's copy of SCRAM credentials and delegation tokens, which the coordinator publishes."""

from __future__ import annotations

import msgspec

from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.credentials import CredentialBase, CredentialNews, ScramImage, TokenImage
from mpbroker.ipc.process import ProcessContext
from mpbroker.security.delegation import credential_of_token
from mpbroker.security.principals import principal_of
from mpbroker.security.scram import ScramCredential, ScramType, TokenLogin

_decoder: msgspec.msgpack.Decoder[CredentialNews] = msgspec.msgpack.Decoder(CredentialNews)


class Credentials:
    """SCRAM credentials and tokens. Each login reads new messages first, so it sees acknowledged changes."""

    def __init__(self, context: ProcessContext) -> None:
        memory = context.memory
        self._context = context
        self._reader = BulletinReader(
            memory.private.block("credentials"), memory.words("credential_acks"), context.index
        )
        self._known: dict[tuple[str, int], ScramCredential] = {}
        self._tokens: dict[str, TokenImage] = {}
        # Tokens' credentials are derived when they are needed first: that takes some milliseconds.
        self._derived: dict[str, dict[ScramType, ScramCredential]] = {}

    def follow(self) -> None:
        """Read new messages. Call it often: the coordinator may wait until all processes have read them."""
        # Not before the publisher counts this process as a reader: else it may overwrite a base being read.
        if not self._context.is_alive(self._context.index):
            return
        for message in self._reader.poll():
            news = _decoder.decode(message)
            if isinstance(news, CredentialBase):
                self._known = {(c.user, c.mechanism): _credential(c) for c in news.credentials}
                self._tokens = {token.token_id: token for token in news.tokens}
                self._derived = {one: made for one, made in self._derived.items() if one in self._tokens}
                continue
            self._known.update({(c.user, c.mechanism): _credential(c) for c in news.changed})
            for key in news.removed:
                self._known.pop(key, None)
            self._tokens.update((token.token_id, token) for token in news.tokens)
            for token_id in news.removed_tokens:
                self._tokens.pop(token_id, None)
                self._derived.pop(token_id, None)

    def look_up(self, kind: ScramType, user: str) -> ScramCredential | None:
        self.follow()
        return self._known.get((user, int(kind)))

    def look_up_token(self, kind: ScramType, token_id: str) -> TokenLogin | None:
        """Return owner, expiry and credential of a token; None if it is unknown. It may have expired."""
        self.follow()
        token = self._tokens.get(token_id)
        if token is None:
            return None
        derived = self._derived.setdefault(token_id, {})
        if kind not in derived:
            derived[kind] = credential_of_token(kind, token.hmac)
        owner = principal_of(token.owner)
        return TokenLogin(owner, token.expires_ms, derived[kind])


def _credential(image: ScramImage) -> ScramCredential:
    return ScramCredential(image.iterations, image.salt, image.stored_key, image.server_key)
