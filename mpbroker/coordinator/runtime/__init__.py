"""Code that the group coordinator and the transaction coordinator share.

Each coordinator is a state machine without I/O. The code here handles its requests, reads and writes its
topic, and runs its timers. (Kafka: CoordinatorRuntime.)
"""
