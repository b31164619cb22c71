"""File access of the log process: syncing threads, background work."""
