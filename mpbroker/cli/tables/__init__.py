"""The commands of `mpbroker tables`."""
