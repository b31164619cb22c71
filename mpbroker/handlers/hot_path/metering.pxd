"""Counts per topic of the native produce and fetch paths.

(Kafka: BrokerTopicStats, marked by ReplicaManager and KafkaApis.)
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.handlers.hot_path.fetch cimport FETCH_KEY, FetchCounts
from mpbroker.ipc.jobs cimport PRODUCE_KEY
from mpbroker.ipc.meters cimport (
    ApiHistogram, MetersRef, TopicMeter, api_page, count_error, count_topic, note_api, topic_cell,
)
from mpbroker.ipc.slots cimport JobBatch, JobHeader, ProduceSlot

cdef inline void count_produce(
    MetersRef *meters, const uint8_t *arena, const ProduceSlot *job, uint64_t unpacked_bytes
) noexcept nogil:
    """Count each partition of a request that goes to the log process, and the unpacked bytes of batches."""
    cdef JobHeader *header = <JobHeader *>(arena + job.block + job.job)
    cdef JobBatch *batches = <JobBatch *>(<uint8_t *>header + sizeof(JobHeader))
    cdef uint32_t i
    for i in range(header.batches):
        count_topic(
            topic_cell(meters, batches[i].slot, batches[i].slot_generation), TopicMeter.TOTAL_PRODUCE, 1,
        )
    if unpacked_bytes:
        note_api(api_page(meters, PRODUCE_KEY), ApiHistogram.TEMPORARY_BYTES, unpacked_bytes)

cdef inline void count_fetch(MetersRef *meters, const FetchCounts *counts) noexcept nogil:
    """Count a fetch whose response and partitions have no error."""
    cdef uint64_t *cell
    cdef uint32_t i
    for i in range(counts.count):
        cell = topic_cell(meters, counts.partitions[i].slot, counts.partitions[i].generation)
        count_topic(cell, TopicMeter.TOTAL_FETCH, 1)
        if counts.partitions[i].length:
            count_topic(cell, TopicMeter.BYTES_OUT, counts.partitions[i].length)
    count_error(meters, FETCH_KEY, 0, 1 + counts.count)
