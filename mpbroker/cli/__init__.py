"""The `mpbroker` command. Every command imports what it needs when it runs, so that each starts quickly."""
