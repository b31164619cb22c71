"""Why directories do not change hands."""


class CannotMove(Exception):
    """An export or import is refused. The message names the problem, its place and the remedy."""
