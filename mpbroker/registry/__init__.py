"""Values whose schemas are in a registry: its client, their framing, and Avro, Protobuf and JSON Schema."""
