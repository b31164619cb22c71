"""Topics, settings, quotas and credentials: the rules, the state, and the records of the state in the log."""
