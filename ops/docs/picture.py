"""Draws docs/pipeline.svg from docs/pipeline.txt: `python -m ops.docs.picture`.

The text says which boxes and arrows there are and where; this module says how they look. The colours follow
the reader's light or dark mode, on a ground of the picture's own, so that it is legible on any page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = DOCS / "pipeline.txt"
PICTURE = DOCS / "pipeline.svg"

ALT = "Clients, processor, handler, log worker: the way of a request through the processes of mpbroker"
LINE_HEIGHT = 17
CORNER = 8
# How far the boxes behind a box that stands for several processes look out.
BEHIND = 5
# The sample of a legend's entry, and from its beginning to the text.
SAMPLE_WIDTH, SAMPLE_HEIGHT, TEXT_BEHIND = 30, 14, 40
ARROWS = ("data", "answer", "control")
BOXES = ("one", "many", "outside")

_LABEL = re.compile(r"(?P<text>.*?)\s*@\s*(?P<x>\d+)\s+(?P<y>\d+)(?:\s+(?P<anchor>start|middle|end))?$")
_SIDE = re.compile(r"(?P<box>\w+)\.(?P<side>[nesw])(?P<shift>[+-]\d+)?$")

# Class, light and dark; what stands first is the property.
COLOURS = (
    ("fill", ".ground", "#ffffff", "#0d1117"),
    ("stroke", ".ground", "#d0d7de", "#30363d"),
    ("fill", ".panel", "#f6f8fa", "#161b22"),
    ("stroke", ".panel", "#d0d7de", "#30363d"),
    ("fill", ".process", "#ddf0ff", "#12314f"),
    ("stroke", ".process", "#218bff", "#388bfd"),
    ("fill", ".outside", "#fff4d6", "#3b2c0a"),
    ("stroke", ".outside", "#bf8700", "#d29922"),
    ("fill", "text", "#1f2328", "#e6edf3"),
    ("fill", ".small, .label", "#57606a", "#9da7b3"),
    ("stroke", "path.data", "#0969da", "#58a6ff"),
    ("stroke", "path.answer", "#1a7f37", "#3fb950"),
    ("stroke", "path.control", "#6e7781", "#8b949e"),
    ("fill", "polygon.data", "#0969da", "#58a6ff"),
    ("fill", "polygon.answer", "#1a7f37", "#3fb950"),
    ("fill", "polygon.control", "#6e7781", "#8b949e"),
)

STYLE = """\
text { font-family: -apple-system, "Segoe UI", "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif }
.title { font-size: 15px; font-weight: 600 }
.small { font-size: 12px }
.label { font-size: 12px }
path { fill: none; stroke-width: 1.8; stroke-linejoin: round }
path.control { stroke-dasharray: 5 4 }
"""


class PictureError(ValueError):
    """A line of the source that cannot be drawn: it names the line and what would be right."""


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines below it; `kind` is one, many or outside."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    texts: list[str]

    def at(self, side: str, shift: int) -> tuple[int, int]:
        """The middle of a side, moved along it."""
        middle_x, middle_y = self.x + self.width // 2, self.y + self.height // 2
        return {
            "n": (middle_x + shift, self.y),
            "s": (middle_x + shift, self.y + self.height),
            "w": (self.x, middle_y + shift),
            "e": (self.x + self.width, middle_y + shift),
        }[side]


@dataclass
class Drawing:
    """The shapes of one picture, in the order in which they are painted."""

    width: int = 0
    height: int = 0
    boxes: dict[str, Box] = field(default_factory=dict)
    shapes: list[str] = field(default_factory=list)

    def text(self, kind: str, x: int, y: int, text: str, anchor: str = "middle") -> None:
        self.shapes.append(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'
        )

    def rectangle(self, kind: str, x: int, y: int, width: int, height: int) -> None:
        self.shapes.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{CORNER}"/>'
        )

    def panel(self, numbers: list[int], texts: list[str]) -> None:
        x, y, width, height = numbers
        self.rectangle("panel", x, y, width, height)
        self.text("title", x + width // 2, y + 26, texts[0])
        for note in texts[1:]:
            self.text("small", x + width // 2, y + height - 12, note)

    def box(self, name: str, box: Box) -> None:
        self.boxes[name] = box
        self.rectangles(box.kind, box.x, box.y, box.width, box.height, BEHIND)
        top = box.y + box.height // 2 - LINE_HEIGHT * (len(box.texts) - 1) // 2 + 5
        for line, text in enumerate(box.texts):
            kind = "small" if line else "title"
            self.text(kind, box.x + box.width // 2, top + LINE_HEIGHT * line, text)

    def rectangles(self, kind: str, x: int, y: int, width: int, height: int, behind: int) -> None:
        """Draw a box. One of several processes gets two more rectangles, each moved by `behind`."""
        shown = "outside" if kind == "outside" else "process"
        for moved in (2 * behind, behind) if kind == "many" else ():
            self.rectangle(shown, x + moved, y - moved, width, height)
        self.rectangle(shown, x, y, width, height)

    def legend(self, kind: str, x: int, y: int, text: str) -> None:
        """Draw a small box or an arrow of a kind, and behind it what the kind means."""
        if kind in ARROWS:
            self.arrow(kind, [f"{x},{y}", f"{x + SAMPLE_WIDTH},{y}"], "")
        elif kind in BOXES:
            self.rectangles(kind, x, y - SAMPLE_HEIGHT // 2, SAMPLE_WIDTH - 2, SAMPLE_HEIGHT, BEHIND // 2)
        else:
            raise PictureError(f"no kind of {', '.join(ARROWS + BOXES)}")
        self.text("small", x + TEXT_BEHIND, y + 4, text, "start")

    def point(self, text: str) -> tuple[int, int]:
        if match := _SIDE.match(text):
            return self.boxes[match["box"]].at(match["side"], int(match["shift"] or 0))
        x, _, y = text.partition(",")
        return int(x), int(y)

    def arrow(self, kind: str, points: list[str], label: str) -> None:
        places = [self.point(one) for one in points]
        (from_x, from_y), (to_x, to_y) = places[-2:]
        along_x, along_y = (to_x > from_x) - (to_x < from_x), (to_y > from_y) - (to_y < from_y)
        neck = (to_x - 7 * along_x, to_y - 7 * along_y)
        line = " L".join(f"{x} {y}" for x, y in [*places[:-1], neck])
        self.shapes.append(f'<path class="{kind}" d="M{line}"/>')
        left = (to_x - 9 * along_x - 5 * along_y, to_y - 9 * along_y - 5 * along_x)
        right = (to_x - 9 * along_x + 5 * along_y, to_y - 9 * along_y + 5 * along_x)
        head = " ".join(f"{x},{y}" for x, y in ((to_x, to_y), left, right))
        self.shapes.append(f'<polygon class="{kind}" points="{head}"/>')
        if (match := _LABEL.match(label)) and match["text"]:
            self.text("label", int(match["x"]), int(match["y"]), match["text"], match["anchor"] or "middle")


def read(source: str) -> Drawing:
    """The picture that a text describes. Raises PictureError."""
    drawing = Drawing()
    for number, line in enumerate(source.splitlines(), 1):
        what, _, rest = line.partition("#")[0].partition(" ")
        if not what:
            continue
        words, _, label = rest.partition(" : ")
        fields = words.split()
        texts = [text.strip() for text in label.split("|")]
        try:
            if what == "size":
                drawing.width, drawing.height = map(int, fields)
            elif what == "panel":
                drawing.panel([int(one) for one in fields], texts)
            elif what == "box":
                name, kind, *numbers = fields
                x, y, width, height = map(int, numbers)
                drawing.box(name, Box(kind, x, y, width, height, texts))
            elif what == "arrow":
                drawing.arrow(fields[0], fields[1:], label.strip())
            elif what == "legend":
                drawing.legend(fields[0], int(fields[1]), int(fields[2]), label.strip())
            else:
                raise PictureError("no size, panel, box, arrow or legend")
        except (ValueError, KeyError) as error:
            raise PictureError(f"{SOURCE.name}, line {number}: {error}: {line}") from error
    return drawing


def picture(source: str | None = None) -> str:
    """The whole SVG, of docs/pipeline.txt unless another text is given."""
    drawing = read(SOURCE.read_text() if source is None else source)
    light, dark = ("".join(f"{one[1]} {{ {one[0]}: {one[place]} }}\n" for one in COLOURS) for place in (2, 3))
    style = f"{STYLE}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
    width, height = drawing.width, drawing.height
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<!-- Made from pipeline.txt by `python -m ops.docs.picture`; edit that. -->",
            f"<title>{ALT}</title>",
            f"<style>\n{style}</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="{CORNER}"/>',
            *drawing.shapes,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
