"""Client quotas: limits of clients, and how much of them is used."""
