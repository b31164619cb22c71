"""Commands that ask a cluster, and the client that they ask with."""
