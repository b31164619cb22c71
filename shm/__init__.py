"""Shared memory for processes that never wait for each other: one writer per word, and no wait for a dead
process.

`region` has named blocks; `ring` descriptors; `doorbell` wake-ups; `arena` buffers and leases; `table`
two-copy slots; `marks` marks of waiting processes; `counters` numbers and histograms; `word` single words;
`rates` sums over a sliding window; `clock` the time. Usable alone; knows nothing of Kafka.
"""
