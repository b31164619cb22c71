"""`mpbroker spark`: its flags, and what its commands do."""
