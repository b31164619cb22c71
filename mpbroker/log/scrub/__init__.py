"""The scrubber: a process that looks for damage in sealed segments."""
