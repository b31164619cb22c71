"""Functions that decode the columns of bytes that `format("mpbroker")` reads."""

from spark_integration.functions import drop_malformed, from_avro, from_msgpack

__all__ = ["drop_malformed", "from_avro", "from_msgpack"]
