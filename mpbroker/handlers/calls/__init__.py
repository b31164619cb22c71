"""Calls of a handler to the coordinator and the log workers, and their deadlines."""
