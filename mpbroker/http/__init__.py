"""HTTP below the broker's applications: a server for them, whom it answers, and responses."""
