"""Opens the store that `mpbroker.remote.url` names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mpbroker.config.extras import pip_install
from mpbroker.remote.store.bucket import SCHEMES, BucketStore
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.object_store import ObjectStore

_EXAMPLES: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
# What all stores keep as it is, in names and in signatures.
_PLAIN = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*").fullmatch


class StoreRefused(Exception):
    """Raised for a URL that names no store that can be opened; the message says what to do."""


def open_store(url: str, request_timeout_ms: int) -> ObjectStore:
    """Open the store of a URL. Requests are made later. Raises StoreRefused."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _directory(url, parts.netloc, parts.path)
    if parts.scheme not in SCHEMES:
        raise StoreRefused(f"mpbroker.remote.url={url} names no store that is known: write {_EXAMPLES}")
    prefix = parts.path.strip("/")
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise StoreRefused(
            f"mpbroker.remote.url={url} is not of the form {parts.scheme}://bucket/prefix: endpoint and "
            "credentials belong into the environment"
        )
    if prefix and not _PLAIN(prefix):
        raise StoreRefused(
            f"mpbroker.remote.url={url} has a prefix with other characters than letters, digits and ._=-"
        )
    try:
        return BucketStore(parts.scheme, parts.netloc, prefix, request_timeout_ms)
    except ImportError as error:
        raise StoreRefused(f"{url} needs the package obstore: {pip_install('tier')}") from error


def _directory(url: str, host: str, path: str) -> DirectoryStore:
    root = Path(path)
    if host or not path.startswith("/"):
        raise StoreRefused(f"mpbroker.remote.url={url} has no absolute path: write file:///directory")
    if not root.is_dir():
        # It is not made: where a mount is missing, the disk of this host would take its place.
        raise StoreRefused(f"mpbroker.remote.url={url}: {root} is no directory: mount it, or make it")
    return DirectoryStore(root)
