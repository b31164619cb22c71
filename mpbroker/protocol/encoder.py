"""Compiles the encoder of one message and version.

An encoder takes a message and the first segment, which may already hold a header, and returns all segments.
Large records become separate segments and are never copied. An encoder in pieces is a generator that pauses,
like a decoder in pieces (decoder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from struct import Struct
from typing import Any, NoReturn, TypeAlias

from mpbroker.protocol.compiler import FunctionWriter
from mpbroker.protocol.decoder import ELEMENTS_AT_ONCE
from mpbroker.protocol.printable import error_text
from mpbroker.protocol.schema import Field, Message, StructType
from mpbroker.protocol.wire import MAX_STRING, UVARINTS, Buffer, RecordsSlice, uvarint

Encoder: TypeAlias = Callable[[Any, bytearray], list[Buffer]]
EncoderInPieces: TypeAlias = Callable[[Any, bytearray], Generator[None, None, list[Buffer]]]

# Below this size copying records is cheaper than sending two more segments.
INLINE_RECORDS = 4096

_SMALL = 33


@cache
def packers(length_code: str, code: str) -> list[Callable[..., bytes]]:
    """Return a list of `Struct.pack` methods: item N packs a length and N values of type `code`."""
    return [Struct(">" + length_code + code * n).pack for n in range(_SMALL)]


@cache
def many_packer(code: str) -> Callable[[list[Any]], bytes]:
    if code == "16s":
        return b"".join

    def pack(values: list[Any]) -> bytes:
        return Struct(f">{len(values)}{code}").pack(*values)

    return pack


def put_tags(w: bytearray, tags: list[tuple[int, bytearray]]) -> None:
    w += uvarint(len(tags))
    for tag, value in tags:
        w += uvarint(tag) + uvarint(len(value))
        w += value


def string_length(n: int) -> bytes:
    """Return `n` as a varint: the compact length of a string of n - 1 bytes. Raises ValueError."""
    if n > MAX_STRING + 1:
        too_long(n - 1)
    return uvarint(n)


def too_long(size: int) -> NoReturn:
    raise ValueError(f"a string of {size} bytes is longer than {MAX_STRING}")


RUNTIME: dict[str, Any] = {
    "RecordsSlice": RecordsSlice,
    "UV": UVARINTS,
    "error_text": error_text,
    "put_tags": put_tags,
    "string_length": string_length,
    "too_long": too_long,
    "uvarint": uvarint,
}


class _EncoderWriter(FunctionWriter):
    """Generates an encoder. With `pauses`, the encoder is a generator that encodes in pieces."""

    def __init__(self, message: Message, version: int, cls: type, pauses: bool) -> None:
        super().__init__(message, version, cls)
        self.pauses = pauses
        self.names.update(RUNTIME)
        self._pending: list[tuple[str, str | None]] = []

    def flush(self) -> None:
        """Write a line that packs the pending (format, expression) pairs; expression None is a zero byte."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        values = [value for _, value in self._pending if value is not None]
        self._pending = []
        if not values:
            self.raw("w.append(0)" if codes == "x" else f"w += {bytes(len(codes))!r}")
            return
        pack = self.name_of(Struct(">" + codes).pack, "pack_")
        self.raw(f"w += {pack}({', '.join(values)})")

    def fixed(self, code: str, value: str | None) -> None:
        self._pending.append((code, value))

    def struct(self, struct: StructType, o: str) -> None:
        plain, tagged = struct.at(self.version)
        for f in plain:
            self.field(f, f"{o}.{f.name}")
        if not self.flexible:
            return
        if not tagged:
            self.fixed("x", None)
            return
        values = {f: self.variable() for f in tagged}
        self.put(*(f"{x} = {o}.{f.name}" for f, x in values.items()))
        differs = {f: self.differs(f, x) for f, x in values.items()}
        with self.block(f"if {' or '.join(differs.values())}:"):
            tags, outer = self.variable(), self.variable()
            self.put(f"{tags} = []; {outer} = w")
            for f, x in values.items():
                with self.block(f"if {differs[f]}:"):
                    self.put("w = bytearray()")
                    self.field(f, x)
                    self.put(f"{tags}.append(({f.tag}, w))")
            self.put(f"w = {outer}; put_tags(w, {tags})")
        self.put("else: w.append(0)")

    def differs(self, f: Field, x: str) -> str:
        """Return the condition under which the tagged field `x` is written: it differs from its default."""
        if f.is_null_default():
            return f"{x} is not None"
        if f.is_array:
            return f"{x} is None or {x}" if self.is_nullable(f) else x
        if f.struct is None:
            return f"{x} != {f.default!r}"
        if self.is_nullable(f):
            return f"{x} is None or {x} != {self.class_of(f.struct)}()"
        plain, tagged = f.struct.at(self.version)
        parts = [p for p in plain + tagged if p.fixed_format is not None and not p.is_array]
        if len(parts) < len(plain + tagged):
            return f"{x} != {self.class_of(f.struct)}()"
        return " or ".join(f"{x}.{p.name} != {p.default!r}" for p in parts)

    def field(self, f: Field, value: str) -> None:
        self.array(f, value) if f.is_array else self.value(f, value, self.is_nullable(f))

    def array(self, f: Field, value: str) -> None:
        x = self.variable()
        self.put(f"{x} = {value}")
        if not self.is_nullable(f):
            self.elements(f, x)
            return
        with self.block(f"if {x} is not None:"):
            self.elements(f, x)
        self.put(f"else: w += {self.null_length(wide=True)!r}")

    def elements(self, f: Field, x: str) -> None:
        n = self.variable()
        self.put(f"{n} = len({x})")
        if f.fixed_format is not None:
            self.fixed_elements(f.fixed_format, x, n)
            return
        self.length(n, wide=True)
        element = self.variable()
        with self.block(f"for {element} in {x}:"):
            self.value(f, element, nullable=False)
            if self.pauses:
                self.put("done += 1", f"if not done & {ELEMENTS_AT_ONCE - 1}: yield")

    def fixed_elements(self, code: str, x: str, n: str) -> None:
        length_code, length = ("B", f"{n} + 1") if self.flexible else ("i", n)
        small = self.name_of(packers(length_code, code), "packers_")
        empty = b"\1" if self.flexible else bytes(4)
        self.put(f"if not {n}: w += {empty!r}")
        # most partitions have one replica, and a call without * is twice as fast
        one = self.name_of(packers(length_code, code)[1], "pack_one_")
        self.put(f"elif {n} == 1: w += {one}({2 if self.flexible else 1}, {x}[0])")
        self.put(f"elif {n} < {_SMALL}: w += {small}[{n}]({length}, *{x})")
        with self.block("else:"):
            self.length(n, wide=True)
            self.put(f"w += {self.name_of(many_packer(code), 'pack_many_')}({x})")

    def length(self, n: str, wide: bool) -> None:
        if not self.flexible:
            self.fixed("i" if wide else "h", n)
        else:
            large = "uvarint" if wide else "string_length"
            self.put(f"w += UV[{n} + 1] if {n} < 255 else {large}({n} + 1)")

    def null_length(self, wide: bool) -> bytes:
        if self.flexible:
            return b"\0"
        return b"\xff\xff\xff\xff" if wide else b"\xff\xff"

    def null_struct(self, f: Field) -> bytes:
        """Return the bytes that stand for a null struct: the varint 0 in a tagged field, else the byte -1."""
        return b"\0" if self.version in f.tagged else b"\xff"

    def value(self, f: Field, value: str, nullable: bool) -> None:
        if f.fixed_format is not None:
            self.fixed(f.fixed_format, value)
            return
        x = value
        if not value.isidentifier():
            x = self.variable()
            self.put(f"{x} = {value}")
        write = self.sized if f.struct is None else self.struct_value
        if not nullable:
            write(f, x, nullable)
            return
        null = self.null_struct(f) if f.struct else self.null_length(f.type != "string")
        with self.block(f"if {x} is not None:"):
            write(f, x, nullable)
        self.put(f"else: w += {null!r}")

    def struct_value(self, f: Field, x: str, nullable: bool) -> None:
        if f.struct is None:
            raise TypeError(f"{f.name} is not a struct")
        if nullable:
            self.put("w.append(1)")
        self.struct(f.struct, x)

    def sized(self, f: Field, x: str, _nullable: bool) -> None:
        """Write the lines that encode a string, bytes or records in variable `x`."""
        n = self.variable()
        if f.type == "string":
            text = f"error_text({x})" if f.name == "error_message" else x
            self.put(f"{x} = {text}.encode()", f"{n} = len({x})")
            if not self.flexible:
                self.put(f"if {n} > {MAX_STRING}: too_long({n})")
        else:
            self.put(f"{n} = len({x})")
        self.length(n, wide=f.type != "string")
        if f.type == "records":
            large = f"if {n} > {INLINE_RECORDS} or isinstance({x}, RecordsSlice)"
            self.put(f"{large}: w = bytearray(); out.append({x}); out.append(w)", f"else: w += {x}")
        else:
            self.put(f"w += {x}")


def compile_encoder(message: Message, version: int, cls: type) -> Encoder:
    return _compiled(message, version, cls, pauses=False)


def compile_encoder_in_pieces(message: Message, version: int, cls: type) -> EncoderInPieces:
    return _compiled(message, version, cls, pauses=True)


def _compiled(message: Message, version: int, cls: type, *, pauses: bool) -> Callable[..., Any]:
    writer = _EncoderWriter(message, version, cls, pauses)
    writer.put("out = [w]")
    if pauses:
        writer.put("done = 0", "if False: yield")
    writer.struct(message, "o")
    writer.put("if not w and len(out) > 1: out.pop()", "return out")
    return writer.compile("def encode(o, w):", "encode")
