"""The parts that the group and the transaction coordinator share: requests, their topic, its writes, timers.

The coordinators are state machines without I/O. These parts connect them with the log. (Kafka:
CoordinatorRuntime.)
"""
