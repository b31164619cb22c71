"""The parts that coordinators share: requests, a topic of their own, a queue of writes, a loader, timers.

The coordinators are state machines; these parts connect them with the log. (Kafka: CoordinatorRuntime.)
"""
