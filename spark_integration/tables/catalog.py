"""An Iceberg catalog that is only a bucket or a directory, and the catalogs that pyiceberg knows.

A table is what lies below `<namespace>/<table>/`. Its metadata are the files `metadata/v<N>.metadata.json`.
Each commit creates the next one, only if it is absent: of several that commit at once, one wins. The file
`version-hint.text` is a lower bound of the newest number, and is never set back. Iceberg's Hadoop catalog,
DuckDB and Polars read the same files.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from mpbroker.remote.store.object_store import ObjectMissing, StoreError
from spark_integration.tables.store_io import LOCATION, store_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate

_HINT: Final = "version-hint.text"
_VERSION: Final = re.compile(r".*/v(\d+)\.metadata\.json").fullmatch


class LakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tables are: a URL for all their files, and a catalog (by pyiceberg's names) if not the bucket."""

    location: str
    catalog: dict[str, str] = {}

    def url(self, identifier: Identifier) -> str:
        """Return the location of a table."""
        return "/".join((self.location.rstrip("/"), *identifier))


def open_catalog(lake: LakeSettings) -> Catalog:
    """Open the catalog of a lake. Raises StoreRefused, and pyiceberg's errors."""
    store_of(lake.location)
    properties = {
        PY_IO_IMPL: "spark_integration.tables.store_io.StoreFileIO",
        LOCATION: lake.location,
    }
    if lake.catalog:
        return load_catalog("lake", **{**lake.catalog, **properties})
    return FileSystemCatalog("lake", **properties)


class FileSystemCatalog(MetastoreCatalog):
    """Iceberg's file system tables, below the property `mpbroker.location`. Namespaces need no making."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._lake = LakeSettings(properties[LOCATION])
        self._store = store_of(self._lake.location)

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table. `location` can only be its place in the bucket."""
        found = self.identifier_to_tuple(identifier)
        if location not in (None, self._lake.url(found)):
            raise ValueError(f"a table of this catalog lies at {self._lake.url(found)}, not at {location}")
        metadata = new_table_metadata(
            location=self._lake.url(found),
            schema=self._convert_schema_if_needed(schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=properties,
        )
        if self._newest(found) or not self._create(found, 1, metadata):
            raise TableAlreadyExistsError(f"table {'.'.join(found)} exists")
        return self.load_table(found)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the newest metadata of a table."""
        found = self.identifier_to_tuple(identifier)
        newest = self._newest(found)
        if not newest:
            raise NoSuchTableError(f"there is no table at {self._lake.url(found)}")
        url = f"{self._lake.location.rstrip('/')}/{_name(found, newest)}"
        file_io = self._load_file_io(location=url)
        metadata = FromInputFile.table_metadata(file_io.new_input(url))
        return Table(found, metadata, url, file_io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit changes to a table.

        Raises CommitFailedException if another commit was first, CommitStateUnknownException if the store
        did not say whether this one was made.
        """
        found = table.name()
        now = self.load_table(found)
        staged = self._update_and_stage_table(now, found, requirements, updates)
        if staged.metadata == now.metadata:
            return _response(now.metadata, now.metadata_location)
        number = _number(now.metadata_location) + 1
        if not self._create(found, number, staged.metadata):
            raise CommitFailedException(f"another commit has made version {number} of {'.'.join(found)}")
        url = f"{self._lake.location.rstrip('/')}/{_name(found, number)}"
        return _response(staged.metadata, url)

    def namespace_exists(self, namespace: str | Identifier) -> bool:  # noqa: ARG002
        return True

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Do nothing: a namespace is a part of names."""

    def _newest(self, identifier: Identifier) -> int:
        """Return the number of the newest metadata, 0 if there is no table.

        The hint is a lower bound. Without it, all metadata are listed. Raises StoreError.
        """
        number = self._hint(identifier)
        if number == 0:
            listed = self._store.list("/".join((*identifier, "metadata", "")))
            number = max((_number(one.name) for one in listed), default=0)
        while number and self._store.size(_name(identifier, number + 1)) is not None:
            number += 1
        return number

    def _hint(self, identifier: Identifier) -> int:
        with contextlib.suppress(ObjectMissing, ValueError):
            return int(self._store.get(_hint_name(identifier)))
        return 0

    def _create(self, identifier: Identifier, number: int, metadata: TableMetadata) -> bool:
        """Create a metadata file; return False if another commit has made it.

        A lost answer, or one that the store repeated, leaves a file of the same bytes: the commit is ours.
        """
        name, body = _name(identifier, number), metadata.model_dump_json().encode()
        try:
            created = self._store.create(name, body) or self._store.get(name) == body
        except StoreError as error:
            try:
                created = self._store.get(name) == body
            except StoreError:
                raise CommitStateUnknownException(str(error)) from error
        if created:
            self._advance_hint(identifier, number)
        return created

    def _advance_hint(self, identifier: Identifier, number: int) -> None:
        """Move the hint to a version. Raises CommitStateUnknownException if it is further already.

        Others have built on this version. Or a process that stood still for days has created one again that
        was deleted as an old one, and nobody will ever read it. Only for a commit that surely failed may
        pyiceberg delete the manifests.
        """
        # The commit is made: an error of the store only leaves a hint that is older.
        with contextlib.suppress(StoreError):
            if self._hint(identifier) > number:
                raise CommitStateUnknownException(
                    f"version {number} of {'.'.join(identifier)} is a part of the table, or long past"
                )
            text = str(number).encode()
            self._store.put(_hint_name(identifier), [text], len(text))

    def _refuse(self, *_arguments: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError(
            "a catalog that is only a bucket makes, loads and commits tables: do all else by its files"
        )

    register_table = drop_table = rename_table = drop_namespace = list_tables = list_namespaces = _refuse
    list_views = load_view = register_view = drop_view = view_exists = _refuse
    load_namespace_properties = update_namespace_properties = _refuse


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


def _name(identifier: Identifier, number: int) -> str:
    return "/".join((*identifier, "metadata", f"v{number}.metadata.json"))


def _hint_name(identifier: Identifier) -> str:
    return "/".join((*identifier, "metadata", _HINT))


def _number(name: str) -> int:
    found = _VERSION(name)
    return int(found[1]) if found else 0
