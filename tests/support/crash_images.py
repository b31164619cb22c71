"""What a power cut leaves of the files that a trace (`native/trace.c`) tells of.

On the disk for certain is what a sync had finished with. Whatever was written since may be there or not: each
sector, or each page, by itself, up to any of its writes; the size of a file as of any of these writes; the
names of a directory as of any moment since it was synced, and a sync of its data only says nothing of names.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CREATE, MKDIR, UNLINK, RENAME, WRITE, SIZE, SYNC, MARK, SYNC_ALL = range(1, 10)
_HEAD = struct.Struct("IIQQQ")
SECTOR_BYTES, PAGE_BYTES = 512, 4096


class Event(NamedTuple):
    kind: int
    a: int
    b: int
    c: int
    data: bytes


def read_trace(path: Path) -> list[Event]:
    whole = path.read_bytes()
    events, at = [], 0
    while at < len(whole):
        kind, count, a, b, c = _HEAD.unpack_from(whole, at)
        at += _HEAD.size
        events.append(Event(kind, a, b, c, whole[at : at + count]))
        at += count
    return events


@dataclass
class File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Event]] = field(default_factory=list)

    def synced(self, before: int) -> None:
        for number, event in self.pending:
            if number < before:
                _apply(self.durable, event)
        self.pending = [entry for entry in self.pending if entry[0] >= before]


@dataclass
class Directory:
    durable: dict[bytes, int] = field(default_factory=dict)
    pending: list[tuple[int, Event]] = field(default_factory=list)

    def synced(self, before: int) -> None:
        for number, event in self.pending:
            if number < before:
                _rename(self.durable, event)
        self.pending = [entry for entry in self.pending if entry[0] >= before]


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == SIZE:
        del content[event.b :]
        content.extend(bytes(event.b - len(content)))
        return
    end = event.b + len(event.data)
    content.extend(bytes(max(end - len(content), 0)))
    content[event.b : end] = event.data


def _rename(names: dict[bytes, int], event: Event) -> None:
    if event.kind in (CREATE, MKDIR):
        names[event.data] = event.b
    elif event.kind == UNLINK:
        names.pop(event.data, None)
    else:
        before, after = event.data.split(b"\0")
        names.pop(before, None)
        names[after] = event.b


class Disk:
    """Takes the trace event by event; at any time says what may be left."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.nodes: dict[int, File | Directory] = {root: Directory()}

    def take(self, number: int, event: Event) -> None:
        if event.kind == SYNC:
            node = self.nodes.get(event.a)
            if isinstance(node, File) or (node is not None and not event.c):
                node.synced(event.b)
        elif event.kind == SYNC_ALL:
            for inode in self._below(event.a):
                self.nodes[inode].synced(event.b)
        elif event.kind in (WRITE, SIZE):
            self._file(event.a).pending.append((number, event))
        elif event.kind != MARK:
            if event.kind == CREATE:
                self._file(event.b)
            elif event.kind == MKDIR:
                self.nodes.setdefault(event.b, Directory())
            directory = self.nodes[event.a]
            directory.pending.append((number, event))

    def _file(self, inode: int) -> File:
        node = self.nodes.setdefault(inode, File())
        assert isinstance(node, File)
        return node

    def _below(self, inode: int) -> set[int]:
        """Of one mount point, in which everything has stayed that was ever made there."""
        found, node = {inode}, self.nodes[inode]
        if isinstance(node, Directory):
            named = {event.b for _, event in node.pending if event.kind != UNLINK}
            for child in {*node.durable.values(), *named}:
                found |= self._below(child)
        return found

    # ---- images ----

    def image(self, chance: random.Random, kind: str = "") -> dict[str, bytes | None]:
        """Contents by path, None for a directory. One kind of loss in each image, or some of everything."""
        kind = kind or chance.choice(("killed", "nothing", "sectors", "sectors", "pages", "mixed"))
        return dict(self._walk(self.root, "", chance, kind))

    def _walk(
        self, inode: int, path: str, chance: random.Random, kind: str
    ) -> Iterator[tuple[str, bytes | None]]:
        node = self.nodes[inode]
        if isinstance(node, File):
            yield path, _left_of(node, chance, kind)
            return
        if path:
            yield path, None
        names = dict(node.durable)
        kept = {"killed": len(node.pending), "nothing": 0}.get(kind)
        for _, event in node.pending[: chance.randint(0, len(node.pending)) if kept is None else kept]:
            _rename(names, event)
        for name, child in sorted(names.items()):
            below = f"{path}/{name.decode()}" if path else name.decode()
            yield from self._walk(child, below, chance, kind)


def _left_of(file: File, chance: random.Random, kind: str) -> bytes:
    events = [event for _, event in file.pending]
    if kind == "mixed":
        kind = chance.choice(("killed", "nothing", "sectors", "pages"))
    if kind == "nothing" or not events:
        return bytes(file.durable)
    content = bytearray(file.durable)
    if kind == "killed":
        for event in events:
            _apply(content, event)
        return bytes(content)
    size = len(content)
    for event in events[: chance.randint(0, len(events))]:
        size = event.b if event.kind == SIZE else max(size, event.b + len(event.data))
    _scatter(content, events, chance, SECTOR_BYTES if kind == "sectors" else PAGE_BYTES)
    del content[size:]
    content.extend(bytes(size - len(content)))
    return bytes(content)


def _scatter(content: bytearray, events: list[Event], chance: random.Random, unit: int) -> None:
    """Keep for each unit what was written to it up to some write, independently of other units."""
    lost: set[int] = set()
    how_likely = chance.choice((0.1, 0.5, 0.9))
    for event in events:
        if event.kind == SIZE:
            _apply(content, event)
            continue
        at, end = event.b, event.b + len(event.data)
        content.extend(bytes(max(end - len(content), 0)))
        while at < end:
            number = at // unit
            stop = min((number + 1) * unit, end)
            if number not in lost and chance.random() < how_likely:
                lost.add(number)
            if number not in lost:
                content[at:stop] = event.data[at - event.b : stop - event.b]
            at = stop


def write_image(image: dict[str, bytes | None], directory: Path) -> None:
    """Into one that is not there, or has nothing but empty directories of the same names."""
    directory.mkdir(exist_ok=True)
    for path, content in image.items():
        if content is None:
            (directory / path).mkdir(exist_ok=True)
        else:
            (directory / path).write_bytes(content)
