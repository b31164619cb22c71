"""What a handler asks the coordinator and the log workers, and how long it waits."""
