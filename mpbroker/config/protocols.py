"""Security protocols and TLS versions, by the names that brokers, listeners and clients use.

(Kafka: SecurityProtocol, SslConfigs. Older TLS versions are left out, because current OpenSSL lacks them.)
"""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


def uses_tls(protocol: str) -> bool:
    return protocol in ("SSL", "SASL_SSL")


def uses_sasl(protocol: str) -> bool:
    return protocol in ("SASL_PLAINTEXT", "SASL_SSL")
