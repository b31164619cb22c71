"""Client quotas: limits of clients, and how much of them is used. Without I/O; time is a parameter."""
