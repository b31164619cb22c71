"""Settings of broker and topics: Kafka's key names, types, defaults and bounds, read into typed structs.

`load` merges defaults, `server.properties`, `-o key=value` and flags into one frozen `BrokerConfig`;
`topic_config` holds the settings of topics and `describe` renders both tables for DescribeConfigs.
Facts: Kafka 4.3 (`AbstractKafkaConfig.CONFIG_DEF`, `LogConfig`). Nothing of the broker is imported here.
"""

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import ConfigError, Problem
from mpbroker.config.listeners import Listener
from mpbroker.config.load import Flag, Loaded, load

__all__ = ["BrokerConfig", "ConfigError", "Flag", "Listener", "Loaded", "Problem", "load"]
