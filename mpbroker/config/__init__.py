"""Settings of broker and topics: Kafka's key names, types, defaults and bounds, read into typed structs.

`load` merges defaults, `server.properties`, `-o key=value` and flags into one frozen struct (`broker`);
`topic_config` holds the settings of topics and `describe` renders both tables for DescribeConfigs.
Facts: Kafka 4.3 (`AbstractKafkaConfig.CONFIG_DEF`, `LogConfig`). Nothing of the broker is imported here, and
nothing of the room itself: a client wants a few words of it and not all settings.
"""
