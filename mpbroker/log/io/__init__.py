"""File access of the log process: passing errors, syncing threads, background work."""
