"""The scrubber: a process that searches for damage in sealed segments."""
