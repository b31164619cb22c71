"""Delegation tokens as a processor knows them: base, deltas, and credentials that are derived once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.credentials import CredentialBase, CredentialDelta, TokenImage
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import SharedMemory, Sizes, processor
from mpbroker.network.processor.credentials import Credentials
from mpbroker.security.principals import Principal
from mpbroker.security.scram import ScramType

SHA256, SHA512 = ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512


class Told:
    """A processor's credentials, and who publishes them."""

    def __init__(self, memory: SharedMemory) -> None:
        memory.words("roles").store(processor(0), 1)
        acks = memory.words("credential_acks")
        self.bulletin = BulletinPublisher(memory.private.block("credentials"), acks, lambda: [processor(0)])
        self.known = Credentials(ProcessContext(processor(0), memory, BrokerConfig()))

    def tell(self, news: Any) -> None:
        payload = msgspec.msgpack.encode(news)
        if isinstance(news, CredentialBase):
            self.bulletin.publish_base(payload)
        else:
            self.bulletin.publish_delta(payload)


@pytest.fixture(name="told")
def _told() -> Iterator[Told]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        memory = SharedMemory(Path(directory) / "public", Sizes(partition_slots=16))
        yield Told(memory)
        memory.close()


def image(token_id: str, expires_ms: int = 5, owner: str = "User:ann") -> TokenImage:
    return TokenImage(token_id, owner, expires_ms, token_id.encode())


def test_tokens_come_change_and_go(told: Told) -> None:
    assert told.known.look_up_token(SHA256, "a") is None
    told.tell(CredentialBase([], [image("a"), image("b")]))
    found = told.known.look_up_token(SHA256, "a")
    assert found is not None
    assert (found.owner, found.expires_ms) == (Principal("ann"), 5)
    assert repr(b"a") not in repr(found)
    told.tell(CredentialDelta(tokens=[image("a", 9), image("c")], removed_tokens=["b", "unknown"]))
    renewed = told.known.look_up_token(SHA256, "a")
    assert renewed is not None
    assert renewed.expires_ms == 9
    assert told.known.look_up_token(SHA256, "b") is None
    assert told.known.look_up_token(SHA256, "c") is not None
    told.tell(CredentialBase([], [image("c")]))
    assert told.known.look_up_token(SHA256, "a") is None
    assert list(told.known._derived) == ["c"]


def test_a_credential_is_derived_once_for_each_mechanism(told: Told) -> None:
    told.tell(CredentialBase([], [image("a")]))
    found = [told.known.look_up_token(kind, "a") for kind in (SHA256, SHA512, SHA256, SHA512)]
    one, two, three, four = [login.credential for login in found if login is not None]
    assert one is three
    assert two is four
    assert len(one.stored_key) == 32
    assert len(two.stored_key) == 64


def test_an_owners_name_may_have_colons(told: Told) -> None:
    told.tell(CredentialBase([], [image("a", owner="User:x:y")]))
    found = told.known.look_up_token(SHA512, "a")
    assert found is not None
    assert found.owner == Principal("x:y")


def test_a_token_is_no_user(told: Told) -> None:
    told.tell(CredentialBase([], [image("a")]))
    assert told.known.look_up(SHA256, "a") is None
