"""The error of a test's broker."""


class BrokerFailed(Exception):
    """A broker did not start, ended by itself, or refused a request; its last log lines are quoted."""
