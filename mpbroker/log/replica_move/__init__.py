"""Moves of partitions between log directories while they are served (Kafka: AlterReplicaLogDirs)."""
