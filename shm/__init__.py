"""Shared memory between processes without locks: each word has one writer; a dead process blocks no other.

`region` lays out named blocks. A block may hold a `ring` (a queue of 64-byte slots), a `doorbell` (wakes a
process), an `arena` (allocates buffers and lends them), a `table` of slots for many readers, `marks` of
waiting processes, `counters` and histograms, single `word`s, or `rates` (sums over a sliding window). The
package does not depend on Kafka's protocol or on mpbroker.
"""
