"""Functions between columns of bytes, which `format("mpbroker")` reads and writes, and columns of structs."""

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
