"""A client of schema registries, and codecs of values that name their schema: Avro, Protobuf, JSON Schema."""
