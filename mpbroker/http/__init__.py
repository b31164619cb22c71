"""HTTP for the broker's applications: the server, the rules of which requests it answers, responses."""
