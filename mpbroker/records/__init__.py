"""Record batches without I/O: layout, validation, compression, building, decoding.

(Kafka: DefaultRecordBatch, MemoryRecords, LogValidator.)
"""
