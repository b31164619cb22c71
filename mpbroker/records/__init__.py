"""Lays out, validates, compresses, builds and decodes record batches, without I/O.

(Kafka: DefaultRecordBatch, MemoryRecords, LogValidator.)
"""
