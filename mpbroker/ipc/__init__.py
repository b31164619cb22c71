"""What processes share: who talks to whom (`topology`), descriptors (`slots`), partition slots (`table`)."""
