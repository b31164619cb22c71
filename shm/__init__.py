"""Shared memory for processes that never wait for each other: one writer per word, no waiting for the dead.

`region` named blocks; `ring` descriptors; `doorbell` wake-ups; `arena` buffers and leases; `table` two-copy
slots; `marks` who waits for what; `counters` numbers and histograms; `word` single words; `rates` what was
used in a sliding window; `clock` the time. Usable alone; knows nothing of Kafka.
"""
