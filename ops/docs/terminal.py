"""Draws docs/top-dark.svg and docs/top-light.svg: `mpbroker top` on a broker with some load.

python -m ops.docs.terminal              the two pictures of the docs
python -m ops.docs.terminal --all DIR    each view, light and dark, at 80x24 and larger, for a check by eye
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from html import escape, unescape
from pathlib import Path

from mpbroker.cli.top.app import DARK, LIGHT, TopApp
from mpbroker.cli.top.columns import GROUPS, PARTITIONS, VIEWS, View
from mpbroker.cli.top.watch import BrokerFlags, Watch
from mpbroker.testing import Broker
from ops.docs.load import loaded

DOCS = Path(__file__).parents[2] / "docs"
SIZE = (108, 26)
SIZES = ((80, 24), (108, 26), (140, 40))
LOAD_S = 40.0
INTERVAL_S = 0.5
# A face that readers have, instead of one from a server elsewhere.
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_TEXT = re.compile(
    r'<text class="(?P<class>[^"]+)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="[\d.]+" '
    r'clip-path="[^"]+">(?P<text>[^<]*)</text>'
)
_GROUND = re.compile(r'<rect fill="(#\w+)" [^>]*shape-rendering="crispEdges"/>')
_SCREEN = re.compile(r'<rect x="(0)" y="(0)" width="([\d.]+)" height="([\d.]+)" />')
_LINE_CLIPS = re.compile(r'<clipPath id="[^"]*-line-\d+">.*?</clipPath>\s*', re.DOTALL)
_CELL_WIDTH, _LINE_HEIGHT, _TOP_TO_BASE = 12.2, 24.4, 18.5
_HEIGHTS = {one: number / 8 for number, one in enumerate("▁▂▃▄▅▆▇█", 1)}
_PARTS = {one: number / 8 for number, one in enumerate("▏▎▍▌▋▊▉", 1)}


async def pictures(broker: Broker, wanted: list[tuple[Path, tuple[int, int], str, View]]) -> None:
    """Write a picture for each (file, size, theme, view)."""
    where = BrokerFlags(log_dirs=str(broker.log_dir))
    for size in dict.fromkeys(size for _, size, _, _ in wanted):
        watch = Watch(where)
        app = TopApp(watch, where, watch.first(), interval_s=INTERVAL_S, view=GROUPS)
        async with app.run_test(size=size) as pilot:
            await pilot.pause(LOAD_S)
            for path, of_size, colours, view in wanted:
                if of_size == size:
                    app.theme = colours
                    await pilot.press(str(VIEWS.index(view) + 1))
                    await pilot.pause(INTERVAL_S * 2 if view is not GROUPS else 3)
                    path.write_text(crisp(app.export_screenshot(title="mpbroker top")))
                    print(path)


def crisp(svg: str) -> str:
    """Make a screenshot small, and independent of fonts.

    Block characters become rectangles. Font faces, needless clip paths and spaces around texts are removed.
    """
    svg = _LINE_CLIPS.sub("", _TEXT.sub(_redrawn, _FONT_FACE.sub("", svg)))
    return _on_one_ground(re.sub(r"terminal-\d+-", "t-", svg))


def _on_one_ground(svg: str) -> str:
    """Return the SVG with its commonest background drawn once, not for each piece of a line."""
    ((ground, _),) = Counter(_GROUND.findall(svg)).most_common(1)
    _, _, width, height = next(m.groups() for m in re.finditer(_SCREEN, svg))
    once = f'<rect fill="{ground}" width="{width}" height="{height}"/>'
    svg = _GROUND.sub(lambda match: "" if match[1] == ground else match[0], svg)
    return svg.replace('clip-path="url(#t-clip-terminal)">', f'clip-path="url(#t-clip-terminal)">{once}', 1)


def _redrawn(match: re.Match[str]) -> str:
    text, x, top = unescape(match["text"]), float(match["x"]), float(match["y"]) - _TOP_TO_BASE
    drawn = []
    for found in re.finditer(r"([▁▂▃▄▅▆▇█])\1*|[▏▎▍▌▋▊▉]", text):
        one = found[0][0]
        height = _HEIGHTS.get(one, 1.0) * _LINE_HEIGHT
        width = _PARTS.get(one, len(found[0])) * _CELL_WIDTH
        drawn.append(
            f'<rect class="{match["class"]}" x="{x + found.start() * _CELL_WIDTH:.1f}" '
            f'y="{top + _LINE_HEIGHT - height:.1f}" width="{width + 0.1:.1f}" height="{height + 0.2:.1f}"/>'
        )
    rest = re.sub(r"[▁▂▃▄▅▆▇█▏▎▍▌▋▊▉]", "\xa0", text)
    begins = len(rest) - len(rest.lstrip("\xa0"))
    rest = rest.strip("\xa0")
    if rest:
        drawn.append(
            f'<text class="{match["class"]}" x="{x + begins * _CELL_WIDTH:.1f}" y="{match["y"]}" '
            f'textLength="{len(rest) * _CELL_WIDTH:.1f}">{escape(rest)}</text>'
        )
    return "".join(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", type=Path, metavar="DIR", help="each view, for a check by eye")
    where: Path | None = parser.parse_args().all
    themes = (DARK, LIGHT)
    if where is None:
        wanted = [(DOCS / f"top-{one.rpartition('-')[2]}.svg", SIZE, one, PARTITIONS) for one in themes]
    else:
        wanted = [
            (where / f"{view.key}-{size[0]}-{one.rpartition('-')[2]}.svg", size, one, view)
            for size in SIZES
            for one in themes
            for view in VIEWS
        ]
    with loaded() as broker:
        asyncio.run(pictures(broker, wanted))


if __name__ == "__main__":
    main()
