"""The objects of a segment, as Aiven's plug-in for Kafka's tiered storage lays them out.

(Aiven: tiered-storage-for-apache-kafka, without its compression and encryption.)
"""
