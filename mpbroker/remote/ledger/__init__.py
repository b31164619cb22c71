"""The ledger: numbered objects, each created once, that say which segments the object store has."""
