"""The `mpbroker` command. A call imports only the modules of its command, so that it starts quickly."""
