"""The exception that `mpbroker.testing` raises."""


class BrokerFailed(Exception):
    """A broker did not start, failed, or refused a request. The text may quote its last log lines."""
