"""Functions on columns: what `format("mpbroker")` reads as bytes, decoded."""

from spark_integration.functions import drop_malformed, from_avro, from_msgpack

__all__ = ["drop_malformed", "from_avro", "from_msgpack"]
