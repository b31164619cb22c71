"""Who a client is: TLS contexts, principals and SASL mechanisms as sans-I/O state machines."""
