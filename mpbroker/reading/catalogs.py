"""Chooses the catalog of a query: that of local files, else of brokers, of a bucket, or of both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mpbroker.reading.errors import FilesUnavailable, warn_once
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.log_dirs import identity_of
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import Catalog

if TYPE_CHECKING:
    from mpbroker.reading.bucket_catalog import BucketCatalog


def open_catalog(options: ReadOptions) -> Catalog:
    """Open the catalog of files if the files are here and readMode permits, else of brokers, bucket or both.

    With readMode auto and bootstrap servers or a bucket, files that are here and cannot be read (no
    permission, a broker in another container, a missing second log directory) cause one warning per process.

    Raises FilesUnavailable, SourceUnavailable, OptionError.
    """
    has_others = options.bucket is not None or options.bootstrap_servers is not None
    is_optional = has_others and options.read_mode != "local"
    if options.read_mode != "remote":
        try:
            here = (identity_of(Path(name)) is not None for name in options.log_dirs)
            if not is_optional or (options.log_dirs and all(here)):
                return local_catalog(options)
        except FilesUnavailable as error:
            if not is_optional:
                raise
            named = ",".join(options.log_dirs)
            instead = "the bucket is read" if options.bootstrap_servers is None else "brokers are asked"
            warn_once(f"log.dir {named} cannot be read, {instead} instead: {error}", named)
    if options.bootstrap_servers is None:
        return _of_bucket(options)
    return _of_brokers(options)


def local_catalog(options: ReadOptions) -> LocalCatalog:
    """Open the catalog of files. It asks the bucket, else brokers, for what files do not have.

    Brokers are asked only if the options permit that.

    Raises FilesUnavailable, SourceUnavailable, OptionError.
    """
    may_ask_brokers = options.read_mode != "local" and options.bootstrap_servers is not None
    ask = partial(_of_brokers, options) if may_ask_brokers else None
    stored = partial(_of_bucket, options) if options.bucket is not None else None
    return LocalCatalog(options.log_dirs, read_committed=options.read_committed, ask=ask, stored=stored)


def _of_brokers(options: ReadOptions) -> Catalog:
    if options.bucket is not None:
        from mpbroker.reading.bucket_catalog import SeamCatalog

        return SeamCatalog(options, options.bucket)
    from mpbroker.reading.remote_catalog import RemoteCatalog

    return RemoteCatalog(options)


def _of_bucket(options: ReadOptions) -> BucketCatalog:
    from mpbroker.reading.bucket_catalog import BucketCatalog

    assert options.bucket is not None
    return BucketCatalog(options.bucket, read_committed=options.read_committed)
