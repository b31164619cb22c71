"""The error of an export or import that is refused."""


class CannotMove(Exception):
    """An export or import is refused. The message names the problem, the file or directory, and a remedy."""
