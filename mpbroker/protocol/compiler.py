"""Generates a Python function for one message and version. decoder.py and encoder.py are built on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpbroker.protocol.schema import Field, Message, StructType


class FunctionWriter:
    """Collects the lines of a generated function, and the objects to which the lines refer.

    Values of fixed size are pending at first, so that consecutive ones are packed or unpacked together. `put`
    and the end of a block write the lines of pending values first: later lines may need the values.
    """

    def __init__(self, message: Message, version: int, cls: type) -> None:
        self.message = message
        self.version = version
        self.cls = cls
        self.flexible = version in message.flexible
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._variables = 0

    def flush(self) -> None:
        raise NotImplementedError

    def put(self, *lines: str) -> None:
        self.flush()
        self.raw(*lines)

    def raw(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.put(head)
        self._depth += 1
        yield
        self.flush()
        self._depth -= 1

    def variable(self) -> str:
        self._variables += 1
        return f"x{self._variables}"

    def name_of(self, value: Any, hint: str) -> str:
        """Return the global name by which the generated function refers to the value."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{hint}{len(self.names)}"
        self.names[name] = value
        return name

    def class_of(self, struct: StructType) -> str:
        cls = self.cls if struct is self.message else getattr(self.cls, struct.name)
        return self.name_of(cls, f"{struct.name}_")

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def compile(self, head: str, name: str) -> Callable[..., Any]:
        source = "\n".join([head, *self._lines, ""])
        where = f"<{self.message.name} v{self.version} {name}>"
        exec(compile(source, where, "exec"), self.names)
        function: Callable[..., Any] = self.names[name]
        function.__doc__ = source
        return function
