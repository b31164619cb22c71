"""Files of tables in an object store, for pyiceberg: durable when closed, credentials by environment."""

from __future__ import annotations

import io
import re
from functools import lru_cache
from typing import Final

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore
from mpbroker.remote.store.opening import open_store

# Property of a catalog: the URL below which all files of its tables lie.
LOCATION: Final = "mpbroker.location"
_SHORT: Final = re.compile("^file:/(?!/)")
REQUEST_TIMEOUT_MS: Final = 60_000


@lru_cache(8)
def store_of(location: str) -> ObjectStore:
    """Open the store of a URL, once in each process. Raises StoreRefused."""
    return open_store(location, REQUEST_TIMEOUT_MS, "[lake] location")


def name_in(location: str, url: str) -> str:
    """Return the name that a file's URL has in the store of `location`. Raises ValueError.

    Hadoop, and so Iceberg's Java, writes file:/path for file:///path.
    """
    url = _SHORT.sub("file:///", url)
    start = f"{location.rstrip('/')}/"
    if not url.startswith(start):
        raise ValueError(f"{url} is not below {location}, the location of the tables")
    return url.removeprefix(start)


class StoreFileIO(FileIO):
    """Files below the property `mpbroker.location`."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._location: str = properties[LOCATION]

    def new_input(self, location: str) -> StoreFile:
        return StoreFile(self._location, location)

    def new_output(self, location: str) -> StoreFile:
        return StoreFile(self._location, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        url = location if isinstance(location, str) else location.location
        store_of(self._location).delete([name_in(self._location, url)])


class StoreFile(InputFile, OutputFile):
    """A file of a table. It is read as a whole, and written when its stream is closed."""

    def __init__(self, root: str, location: str) -> None:
        super().__init__(location)
        self._store = store_of(root)
        self._name = name_in(root, location)

    def __len__(self) -> int:
        size = self._store.size(self._name)
        if size is None:
            raise FileNotFoundError(self.location)
        return size

    def exists(self) -> bool:
        return self._store.size(self._name) is not None

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002
        try:
            return io.BytesIO(self._store.get(self._name))
        except ObjectMissing as error:
            raise FileNotFoundError(str(error)) from error

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> io.BytesIO:
        return _Writing(self._store, self._name, overwrite=overwrite)


class _Writing(io.BytesIO):
    """The stream of a new file. After an error while it is written there is no file."""

    def __init__(self, store: ObjectStore, name: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store = store
        self._name = name
        self._overwrite = overwrite

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            super().close()
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        body = self.getvalue()
        super().close()
        if self._overwrite:
            self._store.put(self._name, [body], len(body))
        elif not self._store.create(self._name, body) and self._store.get(self._name) != body:
            raise FileExistsError(self._name)
