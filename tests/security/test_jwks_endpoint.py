"""A key set that is fetched by HTTPS: what is believed, when it is fetched, and that nobody waits for it."""

from __future__ import annotations

import gc
import json
import os
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mpbroker.security import jwks_endpoint
from mpbroker.security.jwks import KeySetError, signed_validator
from mpbroker.security.jwks_endpoint import ANSWER_BYTES_MAX, Endpoint, FetchedKeySet, fetched
from mpbroker.security.oauth import ClaimRules, InvalidToken
from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.real_brokers import served
from tests.support.secure_broker import SecureBroker
from tests.support.tokens import Signer

NEVER = Endpoint("https://never.invalid/keys", 3_600_000, 100, 1000)
FIRST, SECOND = {"keys": [{"kid": "1"}]}, {"keys": [{"kid": "2"}]}


@pytest.fixture(autouse=True)
def _nothing_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks_endpoint, "last_fetched", {})


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Provider(ThreadingHTTPServer):
    """An HTTPS server on loopback; `answers` by path: status, headers, body."""

    daemon_threads = True

    def __init__(self, authority: Authority, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        self.asked: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.sign("provider").write(directory / "provider.pem"))
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def url(self, path: str) -> str:
        return f"https://localhost:{self.server_address[1]}{path}"

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that do not trust us break off."""


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, headers, body = self.server.answers.get(self.path, (404, {}, b"nothing"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def running(authority: Authority, directory: Path) -> Iterator[Provider]:
    server = Provider(authority, directory)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def provider(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write(tmp_path / "ca.pem")))
    with running(authority, tmp_path) as server:
        yield server


@dataclass
class Fetches:
    """What `fetch` answers in turn, the last one for ever; an exception is raised."""

    answers: list[Any]
    count: int = field(default=0)

    def __call__(self, _url: str) -> bytes:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


# ---- what is fetched


def test_what_is_at_an_https_url(provider: Provider) -> None:
    provider.answers["/keys?v=1"] = 200, {}, b'{"keys":[]}'
    assert fetched(provider.url("/keys?v=1")) == b'{"keys":[]}'
    assert provider.asked == ["/keys?v=1"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, {}, b""), "it answers 404"),
        ((302, {"Location": "https://localhost/other"}, b""), "it answers 302"),
        ((200, {}, b"x" * (ANSWER_BYTES_MAX + 1)), "more than 1048576 bytes"),
    ],
)
def test_what_is_no_answer(provider: Provider, answer: tuple[int, dict[str, str], bytes], why: str) -> None:
    """A redirect is not followed: it could lead anywhere."""
    provider.answers["/keys"] = answer
    with pytest.raises(KeySetError, match=why):
        fetched(provider.url("/keys"))
    assert provider.asked == ["/keys"]


def test_another_authority_is_not_believed(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority("another").write(tmp_path / "other.pem")))
    with pytest.raises(KeySetError, match="certificate verify failed"):
        fetched(provider.url("/keys"))


def test_nobody_there() -> None:
    with pytest.raises(KeySetError, match="cannot be fetched"):
        fetched("https://127.0.0.1:1/keys")


# ---- when


def test_pauses_grow_after_failures(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches([KeySetError("down")] * 6 + [FIRST, KeySetError("down")])
    keys = FetchedKeySet(NEVER, fetches)
    caplog.set_level("INFO", "mpbroker")
    assert [keys.fetch_now() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 3600.0, 0.1]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]


def test_keys_stay_while_others_cannot_be_fetched() -> None:
    keys = FetchedKeySet(NEVER, Fetches([FIRST, KeySetError("down"), {"nonsense": 1}]))
    for _ in range(3):
        keys.fetch_now()
        assert keys._keys == FIRST["keys"]


def test_an_unknown_key_is_fetched_early_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    signer, other = Signer(), Signer()
    fetches = Fetches([{"keys": []}, signer.set])
    keys = FetchedKeySet(NEVER, fetches)
    validate = signed_validator(keys, ClaimRules())
    claims = {"sub": "ann", "exp": time.time() + 60}

    def refused(token: str) -> None:
        with pytest.raises(InvalidToken):
            validate(token, int(time.time() * 1000))

    refused(signer.sign("ES256", "e", claims))
    until(lambda: fetches.count == 1, "the first fetch")
    keys._keys = [{"kid": "old"}]
    refused(signer.sign("ES256", "e", claims))
    until(lambda: keys._keys == signer.set["keys"], "an early fetch")
    assert validate(signer.sign("ES256", "e", claims), int(time.time() * 1000)).subject == "ann"
    # Whoever names keys that nobody has causes no more fetches.
    for number in range(10):
        refused(other.sign("ES256", f"unknown-{number}", claims))
    assert not keys._wish.is_set()
    monkeypatch.setattr(jwks_endpoint, "UNKNOWN_KEY_PAUSE_S", 0.0)
    refused(other.sign("ES256", "unknown", claims))
    until(lambda: fetches.count == 3, "another fetch")


def test_another_key_set_of_the_same_url_begins_with_the_keys() -> None:
    """A listener whose settings change goes on letting clients in, and so does a process that is replaced."""
    FetchedKeySet(NEVER, Fetches([FIRST])).fetch_now()
    assert FetchedKeySet(NEVER, Fetches([SECOND]))._keys == FIRST["keys"]
    other = Endpoint("https://other.invalid/keys", 1, 1, 1)
    assert FetchedKeySet(other, Fetches([SECOND]))._keys == []


@pytest.mark.parametrize(("age_ms", "believed"), [(NEVER.refresh_ms, True), (3 * NEVER.refresh_ms, False)])
def test_a_process_that_is_forked_late_does_not_begin_with_old_keys(age_ms: int, believed: bool) -> None:
    keys = FetchedKeySet(NEVER, Fetches([FIRST, KeySetError("down")]))
    keys.fetch_now()
    keys._fetched_at -= age_ms / 1000
    keys.follow()
    assert bool(keys._keys) is believed


def test_nobody_waits_for_a_fetch() -> None:
    """A token is refused at once while another host is silent."""
    silent = threading.Event()

    def fetch(_url: str) -> bytes:
        silent.wait()
        return json.dumps(FIRST).encode()

    keys = FetchedKeySet(NEVER, fetch)
    keys.follow()
    try:
        with pytest.raises(InvalidToken, match="no keys have come from https://never"):
            keys.find({"alg": "ES256", "kid": "1"})
    finally:
        silent.set()
    until(lambda: keys._keys == FIRST["keys"], "the keys")


def test_a_thread_ends_with_its_key_set() -> None:
    before = threading.enumerate()
    keys = FetchedKeySet(NEVER, Fetches([FIRST]))
    keys.follow()
    keys.follow()
    # Those of other tests go on until their next fetch.
    threads = [thread for thread in threading.enumerate() if thread.name == "jwks" and thread not in before]
    fetches = keys._fetch
    assert isinstance(fetches, Fetches)
    until(lambda: fetches.count == 1, "the keys")
    wish, gone = keys._wish, weakref.ref(keys)
    del keys
    gc.collect()
    until(lambda: gone() is None, "the end of the key set")
    wish.set()
    (thread,) = threads
    thread.join(60)
    assert not thread.is_alive()


# ---- a broker


@dataclass
class FetchingBroker(SecureBroker):
    """A broker whose listener SIGNED fetches its keys."""

    url: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        text = self.properties.read_text().replace(f"file://{self.directory}/keys.json", self.url)
        backoff = "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=100\n"
        self.properties.write_text(text + f"listener.name.signed.oauthbearer.{backoff}")

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"]}


def is_let_in(broker: SecureBroker, token: str) -> bool:
    with broker.connect("SIGNED") as client:
        assert client.handshake("OAUTHBEARER").error_code == 0
        return client.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode()).auth_bytes == b""


def test_a_broker_fetches_its_keys(provider: Provider, tmp_path: Path) -> None:
    """It starts without them, lets nobody in until they come, and follows those that change."""
    made = FetchingBroker(tmp_path / "broker", url=provider.url("/keys"))
    with served(made) as broker:
        assert "cannot be fetched: it answers 404" in broker.output()
        assert not is_let_in(broker, broker.token())
        provider.answers["/keys"] = 200, {}, json.dumps(broker.signer.set).encode()
        until(lambda: is_let_in(broker, broker.token()), "keys", lambda: None)
        other = Signer()
        for key in other.set["keys"]:
            key["kid"] += "-2"
        provider.answers["/keys"] = 200, {}, json.dumps(other.set).encode()
        claims = {"sub": "carol", "aud": "mpbroker-tests", "exp": time.time() + 60}
        until(lambda: is_let_in(broker, other.sign("ES256", "e-2", claims)), "other keys", lambda: None)
        assert not is_let_in(broker, broker.token())
