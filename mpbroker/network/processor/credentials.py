"""The SCRAM credentials as a processor knows them: the coordinator's base and deltas applied."""

from __future__ import annotations

import msgspec

from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.credentials import CredentialBase, CredentialNews, ScramImage
from mpbroker.ipc.process import ProcessContext
from mpbroker.security.scram import ScramCredential, ScramType

_decoder: msgspec.msgpack.Decoder[CredentialNews] = msgspec.msgpack.Decoder(CredentialNews)


class Credentials:
    """SCRAM credentials, read anew for every login, so that a user announced to a client can log in."""

    def __init__(self, context: ProcessContext) -> None:
        memory = context.memory
        self._context = context
        self._reader = BulletinReader(
            memory.private.block("credentials"), memory.words("credential_acks"), context.index
        )
        self._known: dict[tuple[str, int], ScramCredential] = {}

    def follow(self) -> None:
        """Read what is new. Call it often: a publisher may wait until all processes have."""
        # Not before the publisher counts this process as a reader: else it may overwrite a base being read.
        if not self._context.is_alive(self._context.index):
            return
        for message in self._reader.poll():
            news = _decoder.decode(message)
            if isinstance(news, CredentialBase):
                self._known = {(c.user, c.mechanism): _credential(c) for c in news.credentials}
                continue
            self._known.update({(c.user, c.mechanism): _credential(c) for c in news.changed})
            for key in news.removed:
                self._known.pop(key, None)

    def look_up(self, kind: ScramType, user: str) -> ScramCredential | None:
        self.follow()
        return self._known.get((user, int(kind)))


def _credential(image: ScramImage) -> ScramCredential:
    return ScramCredential(image.iterations, image.salt, image.stored_key, image.server_key)
