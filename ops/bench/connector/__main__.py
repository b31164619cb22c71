"""Fetches the jars of Spark's Kafka connector."""

from ops.bench.connector import connector_jars

connector_jars()
