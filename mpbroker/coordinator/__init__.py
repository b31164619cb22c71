"""Topics, settings, users, quotas and consumer groups: event logs, and what follows from them.

(Kafka: QuorumController, GroupCoordinatorService.)
"""
