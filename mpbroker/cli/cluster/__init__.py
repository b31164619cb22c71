"""Commands that send requests to a cluster, and the client that they share."""
