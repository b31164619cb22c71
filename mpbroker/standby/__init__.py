"""A standby: follows the ledger of the broker that leads, and takes over when that one has gone."""
