"""What every coordinator over a compacted topic of the broker's own needs: a journal, a loader, timers.

The coordinators are state machines; this is between them and the log. (Kafka: CoordinatorRuntime.)
"""
