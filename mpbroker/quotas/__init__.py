"""Client quotas: who has which limit, and how much of it is used. Without I/O; time is a parameter."""
