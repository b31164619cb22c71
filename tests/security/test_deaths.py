"""Logins while processes die: who knows the users, who publishes them, and who carries the connections."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    MetadataRequest,
)
from mpbroker.security.scram import ScramType, salted_password
from ops.bench.processes import title_of
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import served
from tests.support.secure_broker import SCRAM_PASSWORD, Closed, SecureBroker

SHA512 = ScramType.SCRAM_SHA_512
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
NOT_CONTROLLER = 41


@pytest.fixture(name="broker")
def _broker(tmp_path: Path) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path / "broker", failed_delay_ms=5)) as running:
        yield running


def kill(broker: SecureBroker, title: str) -> None:
    (victim,) = [p for p in broker.tree().members() if title_of(p).startswith(title)]
    victim.send_signal(signal.SIGKILL)
    psutil.wait_procs([victim], timeout=PATIENCE_S)


def eventually(what: str, broker: SecureBroker, user: str) -> None:
    """Between a death and its mending connections are refused or closed, and nobody is told who is who."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if what == "add" and add(broker, user) == 0:
                return
            if what == "log in" and logs_in(broker, user):
                return
        except (Closed, OSError):
            continue
    pytest.fail(f"{user} cannot {what} within {PATIENCE_S:.0f} s")


def add(broker: SecureBroker, user: str) -> int:
    salt = os.urandom(16)
    salted = salted_password(SHA512, SCRAM_PASSWORD, salt, 4096)
    with broker.connect("OPEN") as client:
        body = AlterUserScramCredentialsRequest([], [Upsertion(user, SHA512, 4096, salt, salted)])
        (result,) = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body).results
        assert result.error_code in (0, NOT_CONTROLLER)
        code: int = result.error_code
        return code


def logs_in(broker: SecureBroker, user: str) -> bool:
    with broker.connect("BOTH") as client:
        if client.scram(SHA512, user, SCRAM_PASSWORD).error_code:
            return False
        return len(client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers) == 1


def test_a_processor_that_died_has_a_successor_that_knows_the_users(broker: SecureBroker) -> None:
    assert add(broker, "ann") == 0
    assert logs_in(broker, "ann")
    kill(broker, "processor 0")
    eventually("log in", broker, "ann")
    assert add(broker, "bob") == 0
    assert logs_in(broker, "bob")


def test_a_coordinator_that_died_publishes_again(broker: SecureBroker) -> None:
    assert add(broker, "ann") == 0
    for user in ("bob", "carol", "dora"):
        kill(broker, "coordinator")
        # Who is known can log in while nobody publishes.
        assert logs_in(broker, "ann")
        eventually("add", broker, user)
        assert logs_in(broker, user)
    assert logs_in(broker, "bob")


def token_of_ann(broker: SecureBroker) -> tuple[str, str]:
    """Return the id and the HMAC of a new token."""
    with broker.connect("SASL") as client:
        assert client.plain().error_code == 0
        made = client.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert made.error_code == 0
        return made.token_id, base64.b64encode(made.hmac).decode()


def logs_in_by(broker: SecureBroker, token: tuple[str, str]) -> bool:
    with broker.connect("BOTH") as client:
        return client.scram(SHA512, *token, by_token=True).error_code == 0


def test_a_token_outlives_the_coordinator_that_made_it(broker: SecureBroker) -> None:
    """The coordinator is killed as soon as its answer is there; then who was told of it; then everybody."""
    token = token_of_ann(broker)
    kill(broker, "coordinator")
    assert logs_in_by(broker, token)
    # The successor has read it from the log, and tells the next processor.
    eventually("add", broker, "ann")
    kill(broker, "processor 0")
    eventually("log in", broker, "ann")
    assert logs_in_by(broker, token)
    another = token_of_ann(broker)
    broker.kill()
    broker.start()
    for one in (token, another):
        assert logs_in_by(broker, one)
