"""Object stores: what the ledger and the copies of segments need of them, for buckets and for directories."""
