"""Topics, settings, users, quotas and consumer groups: event logs and the state that they add up to.

(Kafka: QuorumController, GroupCoordinatorService.)
"""
