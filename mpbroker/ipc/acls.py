"""Access control entries and filters as processes send them; `security/acls.py` defines the fields."""

from __future__ import annotations

from typing import NamedTuple


class AclImage(NamedTuple):
    """An access control entry, with the fields of `security.acls.Acl` in the same order."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilterImage(NamedTuple):
    """A filter of entries, with the fields of `security.acls.AclFilter` in the same order."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int
