"""Why directories do not change hands."""


class CannotMove(Exception):
    """An export or import is refused. The message says what is wrong, where, and what to do."""
