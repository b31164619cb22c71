"""A key set that is fetched by HTTPS in a thread, so that the check of a token never waits for another host.

The supervisor fetches the keys once, before the first fork. Every processor has a thread that fetches them
again: at its start, every sasl.oauthbearer.jwks.endpoint.refresh.ms, after failures with growing pauses, and
early for a token with an unknown key. The last keys stay in use until new keys arrive. The URL must be https,
redirects are not followed, and the server's certificate is checked with the system's authorities (or
SSL_CERT_FILE). (Kafka: RefreshingHttpsJwks.)
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mpbroker.security.jwks import Keys, KeySetError, keys_in
from mpbroker.security.oauth import InvalidToken

# Larger than any key set.
ANSWER_BYTES_MAX = 1 << 20
TIMEOUT_S = 10.0
# At most one fetch in this time is for unknown keys, which anybody can name (Kafka: one for each key).
UNKNOWN_KEY_PAUSE_S = 60.0
# Refresh intervals after which a new process does not begin with the keys of the one that it was forked from.
OLD_AFTER = 2

# By URL, what this process or the one that it was forked from has fetched, and when (s). A listener with
# changed settings has another key set, and need not refuse tokens until it has fetched the keys again.
last_fetched: dict[str, tuple[float, list[dict[str, Any]]]] = {}

log = logging.getLogger("mpbroker.security")


@dataclass(frozen=True)
class Endpoint:
    """The URL of a key set, the interval of fetching it, and the pauses after failures."""

    url: str
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class FetchedKeySet(Keys):
    """The keys of an endpoint. `fetch(url)` returns the document with the keys or raises KeySetError."""

    def __init__(self, endpoint: Endpoint, fetch: Callable[[str], bytes] | None = None) -> None:
        self.endpoint = endpoint
        self._fetch = fetch or fetched
        self._fetched_at, self._keys = last_fetched.get(endpoint.url, (float("-inf"), []))
        self._wish = threading.Event()
        self._wished_at = float("-inf")
        self._thread_of = 0
        self._failures = 0

    def follow(self) -> None:
        """Start the thread that fetches keys, unless this process has it: a fork does not copy threads."""
        if self._thread_of != os.getpid():
            self._thread_of = os.getpid()
            if (time.monotonic() - self._fetched_at) * 1000 > OLD_AFTER * self.endpoint.refresh_ms:
                # A process that is forked late must not trust keys that were withdrawn long ago.
                self._keys = []
            self._wish = threading.Event()
            thread = threading.Thread(
                target=_keep_fetching, args=(weakref.ref(self), self._wish), name="jwks", daemon=True
            )
            thread.start()

    def find(self, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self._keys:
            raise InvalidToken(f"no keys have come from {self.endpoint.url} yet")
        try:
            return super().find(header)
        except InvalidToken:
            kid = header.get("kid")
            if isinstance(kid, str) and all(key.get("kid") != kid for key in self._keys):
                self._ask_early()
            raise

    def fetch_now(self) -> float:
        """Fetch the keys; return the seconds until the next fetch. A failure is logged and not raised."""
        url = self.endpoint.url
        try:
            self._keys = keys_in(self._fetch(url), url)
        except KeySetError as error:
            if not self._failures:
                log.error("%s. The keys fetched last stay in use; it is tried again", error)
            self._failures += 1
            pause_ms = self.endpoint.retry_backoff_ms << min(self._failures - 1, 30)
            return min(pause_ms, self.endpoint.retry_backoff_max_ms) / 1000
        if self._failures:
            log.info("%s is fetched again", url)
        self._failures = 0
        self._fetched_at = time.monotonic()
        last_fetched[url] = self._fetched_at, self._keys
        return self.endpoint.refresh_ms / 1000

    def _ask_early(self) -> None:
        now = time.monotonic()
        if now - self._wished_at >= UNKNOWN_KEY_PAUSE_S:
            self._wished_at = now
            self._wish.set()


def _keep_fetching(owner: weakref.ref[FetchedKeySet], wish: threading.Event) -> None:
    """Fetch keys until the key set is out of use, for example because the listener's settings changed."""
    while (keys := owner()) is not None:
        pause_s = keys.fetch_now()
        del keys
        wish.wait(pause_s)
        wish.clear()


def fetched(url: str) -> bytes:
    """Return the body of the document at an https URL. Raises KeySetError."""
    # Imported here: no other process of a broker needs it.
    import http.client

    parts = urlsplit(url)
    assert parts.hostname is not None
    where = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
        try:
            connection.request("GET", where, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise KeySetError(f"{url} cannot be fetched: {error}") from error
    if answer.status != http.client.OK:
        raise KeySetError(f"{url} cannot be fetched: it answers {answer.status} {answer.reason}")
    if len(body) > ANSWER_BYTES_MAX:
        raise KeySetError(f"{url} is not a key set: it has more than {ANSWER_BYTES_MAX} bytes")
    return body
