"""Functions that decode columns of bytes, as `format("mpbroker")` reads them, to structs, or the reverse."""

from spark_integration.functions import (
    drop_malformed,
    from_avro,
    from_json_schema,
    from_msgpack,
    from_protobuf,
    to_avro,
    to_json_schema,
    to_protobuf,
)

__all__ = [
    "drop_malformed",
    "from_avro",
    "from_json_schema",
    "from_msgpack",
    "from_protobuf",
    "to_avro",
    "to_json_schema",
    "to_protobuf",
]
