"""Chooses the catalog of a query: the catalog of local files, or the catalog of brokers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mpbroker.reading.errors import FilesUnavailable, warn_once
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.log_dirs import identity_of
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import Catalog


def open_catalog(options: ReadOptions) -> Catalog:
    """Open the catalog of files if the files are here and readMode permits, else the catalog of brokers.

    With readMode auto and bootstrap servers, files that are here and cannot be read (no permission, a broker
    in another container, a missing second log directory) cause one warning per process.

    Raises FilesUnavailable, SourceUnavailable, OptionError.
    """
    may_ask_brokers = options.read_mode != "local" and options.bootstrap_servers is not None
    if options.read_mode != "remote":
        try:
            here = (identity_of(Path(name)) is not None for name in options.log_dirs)
            if not may_ask_brokers or (options.log_dirs and all(here)):
                return local_catalog(options)
        except FilesUnavailable as error:
            if not may_ask_brokers:
                raise
            named = ",".join(options.log_dirs)
            warn_once(f"log.dir {named} cannot be read, brokers are asked instead: {error}", named)
    return _of_brokers(options)


def local_catalog(options: ReadOptions) -> LocalCatalog:
    """Open the catalog of files. It asks brokers for what is not in files, if the options permit.

    Raises FilesUnavailable, SourceUnavailable, OptionError.
    """
    may_ask_brokers = options.read_mode != "local" and options.bootstrap_servers is not None
    ask = partial(_of_brokers, options) if may_ask_brokers else None
    return LocalCatalog(options.log_dirs, read_committed=options.read_committed, ask=ask)


def _of_brokers(options: ReadOptions) -> Catalog:
    from mpbroker.reading.remote_catalog import RemoteCatalog

    return RemoteCatalog(options)
