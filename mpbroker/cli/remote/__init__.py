"""`mpbroker remote`: tiered storage, one module for each command."""
