"""Topics, settings, quotas and credentials: the rules, the state, and its records in the log."""
