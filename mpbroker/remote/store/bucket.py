"""Buckets of S3, Google Cloud Storage and Azure, and of what speaks like them, by obstore.

Credentials and endpoints come from the environment variables of the clouds (AWS_…, GOOGLE_…, AZURE_…).

obstore starts threads at its first request, and hangs for ever in a process that was forked after it.
Therefore this module imports it when the first store is opened, and one process alone makes requests.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from mpbroker.remote.store.object_store import ObjectInfo, ObjectMissing, StoreError
from mpbroker.remote.store.sized import SizedPieces

if TYPE_CHECKING:
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

# An object of at most this size is written by one request; a larger one in parts of it.
PART_BYTES: Final = 16 << 20
PARTS_UNDER_WAY: Final = 2
# An endpoint that says http:// is meant.
_ENDPOINTS: Final = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"),
)
_BACKOFF_MIN: Final = timedelta(milliseconds=100)
_BACKOFF_MAX: Final = timedelta(seconds=2)
_RETRIES: Final = 8

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_XML = re.compile(r"<\?xml.*", re.DOTALL)
# It may hold a signature.
_QUERY = re.compile(r"\?\S*")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
# A range begins at the end of an object or after it: the store says so, or obstore.
_BEYOND: Final = ("416 Range Not Satisfiable", "Wanted range starting at")
# Codes of answers 404 that are about the object. A HEAD has no code.
_NO_OBJECT: Final = frozenset(("NoSuchKey", "BlobNotFound"))
_HINTS: Final = {
    **dict.fromkeys(_NO_BUCKET, "create the bucket, or correct mpbroker.remote.url"),
    "RequestTimeTooSkewed": "set the clock of this host",
    **dict.fromkeys(
        ("403 Forbidden", "401 Unauthorized", "UserNotFound", "169.254.169.254", "metadata.google"),
        "give credentials by the environment: a broker's may read, write, list and delete there, a reader's "
        "read and list",
    ),
}

# The process that has made requests: no other one may, once it has.
_user: int | None = None


class BucketStore:
    """Objects of a bucket below a prefix. (Protocol: `object_store.ObjectStore`.)"""

    def __init__(self, scheme: str, bucket: str, prefix: str, request_timeout_ms: int) -> None:
        """Open a bucket; no request is made. Raises ImportError without obstore, StoreError."""
        import obstore
        from obstore import store as kinds

        self._obstore = obstore
        self._where = f"{scheme}://{bucket}/{prefix}{'/' * bool(prefix)}"
        kind = {"s3": kinds.S3Store, "gs": kinds.GCSStore, "az": kinds.AzureStore}[scheme]
        client, retries = _limits(request_timeout_ms)
        with self._errors(""):
            self._store: S3Store | GCSStore | AzureStore = kind(
                bucket, prefix=prefix or None, client_options=client, retry_config=retries
            )

    def create(self, name: str, body: bytes) -> bool:
        """See ObjectStore. A try whose answer was lost is repeated, and then finds its own object."""
        try:
            with self._request(name):
                self._obstore.put(self._store, name, body, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """See ObjectStore. At most two parts are in memory, and on their way."""
        sized = SizedPieces(name, pieces, size)
        try:
            with self._request(name):
                if size <= PART_BYTES:
                    self._obstore.put(self._store, name, b"".join(sized), use_multipart=False)
                else:
                    self._obstore.put(
                        *(self._store, name, iter(sized)),
                        use_multipart=True,
                        chunk_size=PART_BYTES,
                        max_concurrency=PARTS_UNDER_WAY,
                    )
        except Exception:
            if sized.error is not None:
                raise sized.error from None
            raise

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        if length == 0:
            return b""
        try:
            with self._request(name):
                if length is not None:
                    end = position + length
                    return bytes(self._obstore.get_range(self._store, name, start=position, end=end))
                if position:
                    found = self._obstore.get(self._store, name, options={"range": {"offset": position}})
                else:
                    found = self._obstore.get(self._store, name)
                return bytes(found.bytes())
        except _BeyondTheEnd:
            return b""

    def size(self, name: str) -> int | None:
        """See ObjectStore."""
        try:
            with self._request(name):
                return self._obstore.head(self._store, name)["size"]
        except ObjectMissing:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        with self._request(prefix):
            pages = iter(self._obstore.list(self._store, prefix=prefix or None, offset=after or None))
        while True:
            with self._request(prefix):
                page = next(pages, None)
            if page is None:
                return
            for found in page:
                # Azure ignores the offset.
                if found["path"] > after:
                    modified_ms = int(found["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(found["path"], found["size"], modified_ms)

    def delete(self, names: Iterable[str]) -> None:
        """See ObjectStore."""
        doomed = list(names)
        if not doomed:
            return
        try:
            with self._request(doomed[0]):
                self._obstore.delete(self._store, doomed)
        except ObjectMissing:
            # Stores other than S3 end with the first that is absent.
            for name in doomed:
                with contextlib.suppress(ObjectMissing), self._request(name):
                    self._obstore.delete(self._store, name)

    @contextlib.contextmanager
    def _request(self, name: str) -> Iterator[None]:
        global _user
        assert _user in (None, os.getpid()), "obstore was used before this process was forked: it would hang"
        _user = os.getpid()
        with self._errors(name):
            yield

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        exceptions = self._obstore.exceptions
        try:
            yield
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(name) from error
        except FileNotFoundError as error:
            text = str(error)
            kind = ObjectMissing if _NO_OBJECT.issuperset(_CODE.findall(text)) else StoreError
            raise kind(self._said(name, text)) from error
        except (exceptions.BaseError, ValueError, OSError) as error:
            text = str(error)
            kind = _BeyondTheEnd if any(sign in text for sign in _BEYOND) else StoreError
            raise kind(self._said(name, text)) from error

    def _said(self, name: str, text: str) -> str:
        """Return the object, what the store has answered, and what to do about it if that is known."""
        plain = text.partition("\n\nDebug source")[0]
        advice = next((hint for sign, hint in _HINTS.items() if sign in plain), "")
        codes = _CODE.findall(plain)
        plain = " ".join(_QUERY.sub("", _XML.sub("", plain)).split()).rstrip(" :")
        # A store that has answered says why. Else what to do comes before a text of requests.
        said = (plain, *codes, advice) if codes else (advice, plain)
        return ": ".join(filter(None, (f"{self._where}{name}", *said)))


class _BeyondTheEnd(StoreError):
    """A range begins at or after the end of an object."""


def _limits(request_timeout_ms: int) -> tuple[ClientConfig, RetryConfig]:
    """Return what lets each request end within its timeout.

    A try may take three quarters of it. A try that failed within the first quarter is repeated.
    """
    quarter = timedelta(milliseconds=request_timeout_ms / 4)
    client: ClientConfig = {
        "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
        "connect_timeout": quarter,
        "timeout": 3 * quarter,
    }
    return client, {
        "backoff": {"init_backoff": _BACKOFF_MIN, "max_backoff": _BACKOFF_MAX, "base": 2},
        "max_retries": _RETRIES,
        "retry_timeout": quarter,
    }
