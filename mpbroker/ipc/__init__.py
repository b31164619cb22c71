"""State that processes share: their roles (`topology`), descriptors (`slots`), partition slots (`table`)."""
