"""What the native produce path counts per topic (Kafka: BrokerTopicStats, marked in ReplicaManager.appendRecordsToLeader)."""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.ipc.meters cimport MetersRef, TopicMeter, count_topic, topic_cell
from mpbroker.ipc.slots cimport JobBatch, JobHeader, ProduceSlot

cdef inline void count_produce(MetersRef *meters, const uint8_t *arena, const ProduceSlot *job) noexcept nogil:
    """One per partition of a request that goes to the log process."""
    cdef JobHeader *header = <JobHeader *>(arena + job.block + job.job)
    cdef JobBatch *batches = <JobBatch *>(<uint8_t *>header + sizeof(JobHeader))
    cdef uint32_t i
    for i in range(header.batches):
        count_topic(topic_cell(meters, batches[i].slot, batches[i].slot_generation), TopicMeter.TOTAL_PRODUCE, 1)
