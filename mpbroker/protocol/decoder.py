"""Compiles the decoder of one message and version. A decoder returns the message and the position after it.

Reading after the end of the bytes raises an exception: `unpack_from` does for values of fixed size, and a
subscript does for a single byte. Slices raise none, but since positions only grow, a check of the final
position is enough. An array's count is checked against the remaining bytes before objects are created.

A decoder in pieces is a generator. It pauses after each `ELEMENTS_AT_ONCE` elements of an array, so that the
process can serve other clients while it decodes a long message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Any, TypeAlias

from mpbroker.protocol.compiler import FunctionWriter
from mpbroker.protocol.schema import Field, Message, StructType, element_size
from mpbroker.protocol.wire import (
    REPLACED,
    Buffer,
    MalformedMessage,
    more,
    more_string,
    null,
    read_uvarint,
    skip_tags,
    too_many,
    wrong_tag_size,
)

Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
DecoderInPieces: TypeAlias = Callable[[Buffer, int], Generator[None, None, tuple[Any, int]]]

# Structs or strings of an array that are decoded before a pause: some milliseconds. A power of two.
ELEMENTS_AT_ONCE = 1024

# Python reads bytes faster than views, so a frame up to this size is copied first (its records are still a
# view of the original). A message without records is copied up to any size that clients sensibly send.
COPY_LIMIT = 16 * 1024
COPY_LIMIT_WITHOUT_RECORDS = 1024 * 1024

_SMALL = 33


@cache
def unpackers(code: str) -> list[Callable[[Buffer, int], tuple[Any, ...]]]:
    """Return a list in which item N is the `unpack_from` of N values of one type, for short arrays."""
    return [Struct(">" + code * n).unpack_from for n in range(_SMALL)]


@cache
def many_unpacker(code: str) -> Callable[[Buffer, int, int], list[Any]]:
    if code == "16s":
        return _unpack_uuids

    def unpack(b: Buffer, p: int, n: int) -> list[Any]:
        return list(Struct(f">{n}{code}").unpack_from(b, p))

    return unpack


def _unpack_uuids(b: Buffer, p: int, n: int) -> list[bytes]:
    raw = bytes(b[p : p + 16 * n])
    return [raw[i : i + 16] for i in range(0, 16 * n, 16)]


RUNTIME: dict[str, Any] = {
    "MalformedMessage": MalformedMessage,
    "CUT_OFF": (IndexError, struct_error),
    "more": more,
    "more_string": more_string,
    "null": null,
    "read_uvarint": read_uvarint,
    "skip_tags": skip_tags,
    "too_many": too_many,
    "wrong_tag_size": wrong_tag_size,
}


class _DecoderWriter(FunctionWriter):
    """Generates a decoder. With `pauses`, the decoder is a generator that decodes in pieces.

    With `view`, the decoder reads from a memoryview, whose slices have no `decode` method.
    """

    def __init__(self, message: Message, version: int, cls: type, view: bool, pauses: bool) -> None:
        super().__init__(message, version, cls)
        self.view = view
        self.pauses = pauses
        self.names.update(RUNTIME)
        self._pending: list[tuple[str, str]] = []

    def flush(self) -> None:
        if not self._pending:
            return
        codes, variables = zip(*self._pending, strict=True)
        self._pending = []
        if codes == ("B",):
            self.raw(f"{variables[0]} = b[p]; p += 1")
            return
        layout = Struct(">" + "".join(codes))
        unpack = self.name_of(layout.unpack_from, "unpack_")
        self.raw(f"{', '.join(variables)}, = {unpack}(b, p); p += {layout.size}")

    def fixed(self, code: str) -> str:
        x = self.variable()
        self._pending.append((code, x))
        return x

    def struct(self, struct: StructType) -> str:
        """Write the lines that decode a struct. Return the struct as an expression, valid after `flush`."""
        plain, tagged = struct.at(self.version)
        got = {f: self.field(f) for f in plain}
        if self.flexible:
            got.update(self.tags(tagged))
        fields = struct.fields
        while fields and fields[-1] not in got:
            fields = fields[:-1]
        values = [got[f] if f in got else self.default(f) for f in fields]
        return f"{self.class_of(struct)}({', '.join(values)})"

    def tags(self, tagged: list[Field]) -> dict[Field, str]:
        got = {f: self.variable() for f in tagged}
        count = self.fixed("B")
        if not tagged:
            self.put(f"if {count}: p = skip_tags(b, p, {count})")
            return got
        self.put(*(f"{x} = {self.default(f)}" for f, x in got.items()))
        tag, end = self.variable(), self.variable()
        with self.block(f"if {count}:"):
            self.put(f"if {count} > 127: {count}, p = more(b, p, {count})")
            with self.block(f"for _ in range({count}):"):
                self.put(f"{tag}, p = read_uvarint(b, p); {end}, p = read_uvarint(b, p); {end} += p")
                for i, (f, x) in enumerate(got.items()):
                    with self.block(f"{'elif' if i else 'if'} {tag} == {f.tag}:"):
                        value = self.field(f)
                        self.put(f"{x} = {value}")
                self.put(f"else: p = {end}", f"if p != {end}: wrong_tag_size({tag})")
        return got

    def default(self, f: Field) -> str:
        if f.is_null_default():
            return "None"
        if f.is_array:
            return "[]"
        return f"{self.class_of(f.struct)}()" if f.struct else repr(f.default)

    def field(self, f: Field) -> str:
        return self.array(f) if f.is_array else self.value(f, self.is_nullable(f))

    def array(self, f: Field) -> str:
        a = self.variable()
        n = self.fixed("B" if self.flexible else "i")
        if self.flexible:
            self.put(f"if {n} > 127: {n}, p = more(b, p, {n})", f"{n} -= 1")
        with self.block(f"if {n} >= 0:"):
            size = element_size(f, self.version, self.flexible)
            self.put(f"if {n} * {size} > end - p: too_many('{f.name}', {n})")
            code = f.fixed_format
            if code is not None:
                small = self.name_of(unpackers(code), "unpackers_")
                many = self.name_of(many_unpacker(code), "unpack_many_")
                self.put(f"{a} = [*{small}[{n}](b, p)] if {n} < {_SMALL} else {many}(b, p, {n})")
                self.put(f"p += {n} * {size}")
            else:
                self.put(f"{a} = []")
                with self.block(f"for _ in range({n}):"):
                    element = self.value(f, nullable=False)
                    self.put(f"{a}.append({element})")
                    if self.pauses:
                        self.put(f"if not len({a}) & {ELEMENTS_AT_ONCE - 1}: yield")
        self.put(f"else: {self.nothing(f, a, self.is_nullable(f))}")
        return a

    def nothing(self, f: Field, x: str, nullable: bool) -> str:
        return f"{x} = None" if nullable else f"null('{f.name}')"

    def value(self, f: Field, nullable: bool) -> str:
        if f.fixed_format is not None:
            return self.fixed(f.fixed_format)
        if f.struct is None:
            return self.sized(f, nullable)
        if not nullable:
            return self.struct(f.struct)
        x = self.variable()
        mark = self.fixed("b")
        # Kafka writes 1 before a struct; for none, 0 in a tagged field, else -1.
        with self.block(f"if {mark} {'>' if self.version in f.tagged else '>='} 0:"):
            value = self.struct(f.struct)
            self.put(f"{x} = {value}")
        self.put(f"else: {x} = None")
        return x

    def sized(self, f: Field, nullable: bool) -> str:
        """Write the lines that decode a string, bytes or records. Return the variable with the value."""
        x, end = self.variable(), self.variable()
        if self.flexible:
            n = self.fixed("B")
            rest = "more_string" if f.type == "string" else "more"
            self.put(f"if {n} > 127: {n}, p = {rest}(b, p, {n})")
            present, past = n, f"p + {n} - 1"
        else:
            n = self.fixed("h" if f.type == "string" else "i")
            present, past = f"{n} >= 0", f"p + {n}"
        if f.type == "string":
            piece, how = f"b[p:{end}]", f"'utf-8', '{REPLACED}'"
            take = f"str({piece}, {how})" if self.view else f"{piece}.decode({how})"
        elif f.type == "bytes":
            take = f"bytes(b[p:{end}])"
        else:
            take = f"records[p:{end}]"
        self.put(f"if {present}: {end} = {past}; {x} = {take}; p = {end}")
        self.put(f"else: {self.nothing(f, x, nullable)}")
        return x


def _has_records(struct: StructType, version: int) -> bool:
    plain, tagged = struct.at(version)
    return any(f.type == "records" or (f.struct and _has_records(f.struct, version)) for f in plain + tagged)


def compile_decoder(message: Message, version: int, cls: type, view: bool = False) -> Decoder:
    return _compiled(message, version, cls, view=view, pauses=False)


def compile_decoder_in_pieces(
    message: Message, version: int, cls: type, view: bool = False
) -> DecoderInPieces:
    return _compiled(message, version, cls, view=view, pauses=True)


def _compiled(message: Message, version: int, cls: type, *, view: bool, pauses: bool) -> Callable[..., Any]:
    writer = _DecoderWriter(message, version, cls, view, pauses)
    has_records = _has_records(message, version)
    if has_records:
        writer.put("records = b if b.__class__ is memoryview else memoryview(b)")
    if not view:
        view_decoder = cache(lambda: _compiled(message, version, cls, view=True, pauses=pauses))
        writer.names["view_decoder"] = view_decoder
        limit = COPY_LIMIT if has_records else COPY_LIMIT_WITHOUT_RECORDS
        with writer.block("if b.__class__ is not bytes:"):
            decode = "(yield from view_decoder()(b, p))" if pauses else "view_decoder()(b, p)"
            writer.put(f"if len(b) > {limit}: return {decode}", "b = bytes(b)")
    writer.put("end = len(b)")
    with writer.block("try:"):
        result = writer.struct(message)
        writer.put(f"result = {result}")
    what = f"{message.name} v{version}"
    with writer.block("except CUT_OFF as e:"):
        writer.put(f"raise MalformedMessage('{what}: cut off') from e")
    with writer.block("except MalformedMessage as e:"):
        writer.put(f"raise MalformedMessage(f'{what}: {{e}}') from e")
    writer.put(f"if p > end: raise MalformedMessage('{what}: cut off')")
    if pauses:
        writer.put("if False: yield")
    writer.put("return result, p")
    return writer.compile("def decode(b, p):", "decode")
