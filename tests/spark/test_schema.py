"""Which columns a query gets."""

from __future__ import annotations

import pytest

from mpbroker.reading.errors import OptionError
from spark_integration.schema import schema_for


def test_columns() -> None:
    assert schema_for({}).fieldNames()[-1] == "timestampType"
    assert schema_for({"includeheaders": "true"}).fieldNames()[-1] == "headers"
    assert schema_for({"columns": "headers , key"}).fieldNames() == ["headers", "key"]
    with pytest.raises(OptionError, match="named twice"):
        schema_for({"columns": "key,key"})
