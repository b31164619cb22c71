"""The process that writes the log: recovery, appends, retention, compaction, moves; and the scrubber."""
