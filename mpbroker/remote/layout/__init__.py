"""The objects of a segment, as Aiven's plugin for Kafka's tiered storage lays them out.

(Aiven: tiered-storage-for-apache-kafka, without its compression and encryption.)
"""
