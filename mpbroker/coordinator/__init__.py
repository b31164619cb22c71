"""The coordinator process: decides changes of topics, settings, users, quotas, groups and transactions.

(Kafka: QuorumController, GroupCoordinatorService, TransactionCoordinator.)
"""
