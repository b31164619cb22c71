"""Random messages by the schema, for the tests that compare, cut and break them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.protocol import messages
from mpbroker.protocol.schema import Field, Message, StructType

ALPHABET = "abcXYZ019._-äß€𝄞\0"
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Maker:
    """Makes an instance of a message with a random value in every field that the version has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, message: Message, version: int) -> Any:
        self.cls = getattr(messages, message.name)
        return self.struct(message, message, version)

    def struct(self, message: Message, struct: StructType, version: int) -> Any:
        cls = self.cls if struct is message else getattr(self.cls, struct.name)
        obj = cls()
        plain, tagged = struct.at(version)
        for f in plain + [t for t in tagged if self.random.random() < 0.7]:
            setattr(obj, f.name, self.field(message, f, version))
        return obj

    def field(self, message: Message, f: Field, version: int) -> Any:
        if version in f.nullable and self.random.random() < 0.25:
            return None
        if not f.is_array:
            return self.value(message, f, version)
        count = self.random.choice((0, 1, 2, 3) if f.struct else (0, 1, 2, 3, 40))
        return [self.value(message, f, version) for _ in range(count)]

    def value(self, message: Message, f: Field, version: int) -> Any:
        if f.struct is not None:
            return self.struct(message, f.struct, version)
        r = self.random
        if f.type == "bool":
            return r.random() < 0.5
        if f.type == "float64":
            return r.uniform(-1e9, 1e9)
        if f.type == "uuid":
            return r.choice((bytes(16), r.randbytes(16)))
        if f.type == "string":
            return "".join(r.choices(ALPHABET, k=r.choice((0, 1, 5, 126, 127, 128, 300))))
        if f.type in ("bytes", "records"):
            return r.randbytes(r.choice((0, 1, 60, 127, 128, 5000 if f.type == "records" else 200)))
        return self.integer(f)

    def integer(self, f: Field) -> int:
        r = self.random
        if f.name.endswith("error_code"):
            return r.randint(-1, 133)
        if f.name.endswith("_ms"):
            # kio keeps times as datetime and timedelta, which hold less than an int64.
            return r.choice((0, 1, r.randrange(1 << 31)))
        if f.type.startswith("u"):
            return r.randrange(1 << int(f.type[4:]))
        top = 1 << INTEGER_BITS[f.type] - 1
        return r.choice((-top, -1, 0, 1, top - 1, r.randrange(-top, top)))


@pytest.fixture
def make() -> Callable[[Message, int, int], Any]:
    """make(message, version, seed)"""
    return lambda message, version, seed: Maker(seed).message(message, version)
