"""Settings of broker and topics: Kafka's key names, types, defaults and bounds, read into typed structs.

`load` merges defaults, `server.properties`, `-o key=value` and flags into one frozen struct (`broker`);
`topic_config` holds the settings of topics and `describe` renders the settings of both for DescribeConfigs.
The settings follow Kafka 4.3 (`AbstractKafkaConfig.CONFIG_DEF`, `LogConfig`). This module imports no other
module, because a client needs only some of the package.
"""
