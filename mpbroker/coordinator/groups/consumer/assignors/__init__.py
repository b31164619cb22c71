"""Assignors of the consumer protocol: pure functions that share partitions out to the members of a group.

`assignors.py` has them by name. (Kafka: org.apache.kafka.coordinator.group.assignor.)
"""
