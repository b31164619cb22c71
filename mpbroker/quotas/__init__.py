"""Client quotas: limits of clients, and their usage."""
