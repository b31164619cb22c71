"""HTTP for the broker's applications: the server, the rules for refused requests, and responses."""
