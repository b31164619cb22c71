"""Secrets in what an operator looks at: status, metrics, request log, refusals; and the password prompt."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
)
from mpbroker.security.scram import ScramType
from ops.bench.brokers import ROOT
from tests.security.test_connections import add_user
from tests.support.certificates import Authority
from tests.support.client_tools import eventually
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S, is_readable
from tests.support.real_brokers import control
from tests.support.secure_broker import (
    JAAS,
    KEY_PASSWORD,
    PLAIN_PASSWORD,
    SCRAM_PASSWORD,
    TOKEN_SECRET,
    Closed,
    SecureBroker,
)
from tests.support.tokens import Signer

STORE_PASSWORD, WRONG = "5t0re-Pa55word", "wr0ng-Pa55word"


def forms(secret: str | bytes) -> list[bytes]:
    """As it is, in hexadecimal, and as JSON has it within bytes: base64, wherever it begins in them."""
    raw = secret if isinstance(secret, bytes) else secret.encode()
    encoded = []
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw)
        encoded.append(whole[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6])
    return [raw, raw.hex().encode(), *encoded]


def test_secrets_are_found_in_what_hides_them_badly() -> None:
    for before in range(5):
        told = base64.b64encode(b"n" * before + PLAIN_PASSWORD.encode() + b"rest").decode()
        with pytest.raises(AssertionError):
            assert_not_in("base64", told, PLAIN_PASSWORD)


def assert_not_in(place: str, content: str, *secrets: str | bytes) -> None:
    for secret in secrets:
        for form in forms(secret):
            assert form not in content.encode(), f"{place} has {secret[:4]!r}…"


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def log_in_in_every_way(broker: SecureBroker, good: str, forged: str) -> bytes:
    """Log in right and wrong, and once more when that is not asked for any more.

    Return the HMAC of a delegation token that was made for that.
    """
    with broker.connect("BOTH") as client:
        assert client.plain().error_code == 0
        token = SaslAuthenticateRequest(f"\0ann\0{PLAIN_PASSWORD}".encode())
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, token)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    with broker.connect("BOTH") as client:
        assert client.plain(password=WRONG).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    add_user(broker, "dora")
    for password, code in ((SCRAM_PASSWORD, 0), (WRONG, ErrorCode.SASL_AUTHENTICATION_FAILED)):
        with broker.connect("BOTH") as client:
            assert client.scram(ScramType.SCRAM_SHA_512, "dora", password).error_code == code
    with broker.connect("BOTH") as client:
        assert client.plain().error_code == 0
        made = client.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, CreateDelegationTokenRequest(max_lifetime_ms=-1))
        client.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, DescribeDelegationTokenRequest(None))
        client.ask(ApiKey.RENEW_DELEGATION_TOKEN, 2, RenewDelegationTokenRequest(made.hmac, 60_000))
    with broker.connect("BOTH") as client:
        mac = base64.b64encode(made.hmac).decode()
        assert client.scram(ScramType.SCRAM_SHA_512, made.token_id, mac, by_token=True).error_code == 0
        client.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, ExpireDelegationTokenRequest(made.hmac, -1))
    with broker.connect("SIGNED") as client:
        assert client.handshake("OAUTHBEARER").error_code == 0
        assert client.token(bearer(good)).auth_bytes == b""
        client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(bearer(good)))
    with broker.connect("SIGNED") as client:
        assert client.handshake("OAUTHBEARER").error_code == 0
        assert json.loads(client.token(bearer(forged)).auth_bytes) == {"status": "invalid_token"}
        assert client.token(b"\1").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    mac: bytes = made.hmac
    return mac


def assert_nothing_of_processes_and_files(broker: SecureBroker) -> None:
    """Arguments, environment and the public region; the metadata log has no password either."""
    places = {"log": broker.output_path.read_bytes()}
    for member in broker.tree().members():
        with suppress(psutil.NoSuchProcess):
            places[f"arguments of {member.pid}"] = "\0".join(member.cmdline()).encode()
            places[f"environment of {member.pid}"] = Path(f"/proc/{member.pid}/environ").read_bytes()
    for path in (*broker.runtime_dir.rglob("*"), *broker.log_dir.rglob("*")):
        if path.is_file():
            places[str(path)] = path.read_bytes()
    assert any(path.endswith("public") for path in places), sorted(places)
    secrets = (PLAIN_PASSWORD, SCRAM_PASSWORD, KEY_PASSWORD, TOKEN_SECRET, "PRIVATE KEY", JAAS, WRONG)
    for place, content in places.items():
        for secret in secrets:
            assert secret.encode() not in content, f"{place} has {secret[:3]}…"


def test_nothing_that_an_operator_looks_at_has_a_secret(broker: SecureBroker) -> None:
    good, forged = broker.token(), broker.token(by=Signer())
    supervisor = control(broker)
    supervisor.call("request-log", on=True)
    try:
        with broker.connect("OPEN") as client:

            def is_on() -> bool:
                client.ask(ApiKey.METADATA, 9, MetadataRequest([]))
                return "Completed request:" in broker.output()

            eventually(is_on, "the request log is on")
            mac = log_in_in_every_way(broker, good, forged)
            eventually(lambda: "ALTER_USER_SCRAM_CREDENTIALS" in broker.output(), "it is logged")
        eventually(lambda: broker.output().count('"SASL_AUTHENTICATE"') == 2, "they are logged")
        for key in ("CREATE", "RENEW", "EXPIRE", "DESCRIBE"):
            eventually(lambda key=key: f'"{key}_DELEGATION_TOKEN"' in broker.output(), f"{key} is logged")
    finally:
        supervisor.call("request-log", on=False)
    places = {"log": broker.output()}
    command, directory = OwnCli(broker.bootstrap), ("--log-dirs", str(broker.log_dir))
    for shown in (("status",), ("status", "--json"), ("metrics",), ("metrics", "--json")):
        places[" ".join(shown)] = command("ctl", *shown, *directory).out
    places["users"] = command("user", "list", "--json").out
    tokens = [part for token in (good, forged) for part in (token, token.rpartition(".")[2])]
    admin, resource = AdminClient({"bootstrap.servers": broker.bootstrap}), ConfigResource("broker", "1")
    settings = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    hidden = [settings[name] for name in ("ssl.key.password", "delegation.token.secret.key")]
    assert [(entry.is_sensitive, entry.value) for entry in hidden] == [(True, None)] * 2
    places["settings"] = "".join(f"{entry.value}{entry.synonyms}" for entry in settings.values())
    assert_nothing_of_processes_and_files(broker)
    for place, content in places.items():
        assert len(content) > 50, f"{place}: {content}"
        assert_not_in(place, content, PLAIN_PASSWORD, SCRAM_PASSWORD, KEY_PASSWORD, WRONG, *tokens)
        assert_not_in(place, content, TOKEN_SECRET, mac)
        assert "PRIVATE KEY" not in content, place


# ---- stores with another password


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Path:
    authority = Authority()
    signed = authority.sign("broker")
    store = tmp_path / "store.p12"
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"broker", signed.key, signed.certificate, [authority.certificate], encryption
        )
    )
    return store


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_broker_whose_store_has_another_password(store: Path, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "listeners=TLS://127.0.0.1:0\nlistener.security.protocol.map=TLS:SSL\n"
        f"ssl.keystore.type=PKCS12\nssl.keystore.location={store}\nssl.keystore.password={WRONG}\n"
    )
    code, said = run("serve", "--config", str(config), "--log-dirs", str(tmp_path / "data"))
    assert code != 0
    assert f"{store} cannot be opened: its password is another, or it is damaged" in said
    assert "Traceback" not in said
    assert_not_in("what it says", said, WRONG, STORE_PASSWORD)


def test_a_command_whose_store_has_another_password(
    broker: SecureBroker, store: Path, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.type=PKCS12\n"
        f"ssl.truststore.location={store}\nssl.truststore.password={WRONG}\n"
    )
    server = ("-b", broker.address_of("TLS"), "--command-config", str(config))
    code, said = run("topic", "list", *server)
    assert code != 0
    assert str(store) in said
    assert "Traceback" not in said
    assert_not_in("what it says", said, WRONG, STORE_PASSWORD)


# ---- the prompt


class Terminal:
    """The other end of the terminal that a command was started at."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self.fd = fd
        self.process = process
        self.shown = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if not self._read():
                pytest.fail(f"it ended without {text!r}: {self.shown}")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        is_readable(self.fd, PATIENCE_S)
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            return False  # nobody has the terminal any more
        self.shown += data.decode()
        return bool(data)


@contextmanager
def at_terminal(broker: SecureBroker, *arguments: str) -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap}
    process = subprocess.Popen(
        [sys.executable, "-m", "mpbroker", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_password_is_asked_for_twice_and_never_shown(broker: SecureBroker) -> None:
    with at_terminal(broker, "user", "add", "tess") as terminal:
        for prompt in ("Password for tess: ", "Confirm password: "):
            terminal.read_until(prompt)
            terminal.type(f"{SCRAM_PASSWORD}\n")
        assert terminal.end() == 0
    assert "user tess can log in with SCRAM-SHA-512" in terminal.shown
    assert_not_in("the terminal", terminal.shown, SCRAM_PASSWORD)
    with broker.connect("BOTH") as client:
        assert client.scram(ScramType.SCRAM_SHA_512, "tess", SCRAM_PASSWORD).error_code == 0


def test_two_passwords_that_differ_change_nothing(broker: SecureBroker) -> None:
    with at_terminal(broker, "user", "add", "theo") as terminal:
        for prompt, password in (("Password for theo: ", SCRAM_PASSWORD), ("Confirm password: ", WRONG)):
            terminal.read_until(prompt)
            terminal.type(f"{password}\n")
        assert terminal.end() == 2
    assert "the two passwords differ" in terminal.shown
    assert_not_in("the terminal", terminal.shown, SCRAM_PASSWORD, WRONG)
    with broker.connect("BOTH") as client, pytest.raises((Closed, AssertionError)):
        assert client.scram(ScramType.SCRAM_SHA_512, "theo", SCRAM_PASSWORD).error_code == 0
