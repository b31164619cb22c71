"""Opens the store that `mpbroker.remote.url` names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from mpbroker.config.extras import pip_install
from mpbroker.config.remote import REMOTE_URL, url_problem
from mpbroker.remote.store.bucket import BucketStore
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.object_store import ObjectStore

# What all stores keep as it is, in names and in signatures.
_PLAIN = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*").fullmatch


class StoreRefused(Exception):
    """Raised for a URL that names no store that can be opened; the message says what to do."""


def open_store(url: str, request_timeout_ms: int, named: str = REMOTE_URL) -> ObjectStore:
    """Open the store of a URL; requests are made later. `named` is the setting. Raises StoreRefused."""
    problem = url_problem(url) if url else "it is empty"
    if problem:
        raise StoreRefused(f"{named} names no store: {problem}")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _directory(Path(parts.path), named)
    prefix = parts.path.strip("/")
    if ":" in parts.netloc or (prefix and not _PLAIN(prefix)):
        raise StoreRefused(
            f"{named}={url} has a port, or a prefix of other characters than letters, digits, ._=-: "
            "an endpoint comes from the environment"
        )
    try:
        return BucketStore(parts.scheme, parts.netloc, prefix, request_timeout_ms)
    except ImportError as error:
        raise StoreRefused(f"{named}={url} needs obstore: {pip_install('tier')}") from error


def _directory(root: Path, named: str) -> DirectoryStore:
    if not root.is_dir():
        # It is not made: where a mount is missing, the disk of this host would take its place.
        raise StoreRefused(f"{named}: {root} is no directory: mount it, or make it")
    return DirectoryStore(root)
