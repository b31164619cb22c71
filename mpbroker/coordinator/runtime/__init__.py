"""The parts that coordinators share: requests, a topic of their own, a queue of writes, a loader, timers.

The coordinators are state machines; these parts stand between them and the log. (Kafka: CoordinatorRuntime.)
"""
