"""Authentication of clients: TLS contexts, principals and SASL mechanisms as sans-I/O state machines."""
