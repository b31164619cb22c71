"""Access control entries and filters between processes; `security/acls.py` defines their meaning."""

from __future__ import annotations

from typing import NamedTuple


class AclImage(NamedTuple):
    """The fields of an entry in the order of `security.acls.Acl`."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilterImage(NamedTuple):
    """The fields of a filter in the order of `security.acls.AclFilter`."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int
