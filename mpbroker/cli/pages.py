"""`mpbroker docs`: the pages of the docs, and the other files that come with the commands."""

from __future__ import annotations

import difflib
import pydoc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.flags import Json, flag
from mpbroker.cli.host import shipped
from mpbroker.cli.text.output import print_json, print_rows

# Other files, by short names, with titles.
FILES = {
    "dashboard": ("ops/grafana/mpbroker.json", "Grafana: the dashboard"),
    "alerts": ("ops/prometheus/mpbroker.rules.yml", "Prometheus: the alerts"),
    "prometheus": ("ops/prometheus/prometheus.yml", "Prometheus: a scrape of one broker, with the alerts"),
    "unit": ("ops/systemd/mpbroker.service", "systemd: the service, which mpbroker service install writes"),
    "socket": ("ops/systemd/mpbroker.socket", "systemd: a listening socket that outlives the broker"),
    "sysusers": ("ops/systemd/mpbroker.sysusers.conf", "systemd: the user of the service"),
}
# Pages next to docs/.
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LEVELS = 6
_HEADING = re.compile(r"(#+) (.*)")
_ANCHOR = re.compile(r'<a id="([^"]+)">')


class Page(NamedTuple):
    """A page of the docs or another file: its name on the command line, its path and its title."""

    name: str
    path: Path
    title: str


def pages() -> dict[str, Page]:
    """Return all pages and files by name."""
    directory = shipped.directory()
    docs = directory / "docs"
    markdown = [*(directory / name for name in TOP), *sorted(docs.glob("*.md"))]
    markdown += sorted((docs / "decisions").glob("[0-9]*.md"))
    found = [Page(path.stem.lower(), path, _title(path)) for path in markdown]
    found.append(Page("decisions", docs / "decisions/README.md", _title(docs / "decisions/README.md")))
    found += [Page(name, directory / file, what) for name, (file, what) in FILES.items()]
    return {page.name: page for page in found}


def complete_pages(incomplete: str) -> list[str]:
    return [name for name in pages() if name.startswith(incomplete.lower())]


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip().replace("`", "")


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE[#HEADING]", hidden=True, autocompletion=complete_pages)
    ] = None,
    path: Annotated[
        bool, flag("--path", "Print where the file is; without PAGE, the directory of all.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a page of the docs; without PAGE, list them.

    With HEADING, print that part of the page, as in links: operating#quotas, or OPERATING.md#quotas. The list
    includes the files for systemd, Prometheus and Grafana.
    """
    if page is None:
        if path:
            print(shipped.directory())
            return
        rows = [{"page": one.name, "title": one.title} for one in pages().values()]
        print_rows(rows, as_json=json, nothing="")
        return
    name, _, anchor = page.partition("#")
    found = find(name)
    if path:
        print(found.path)
        return
    text = found.path.read_text("utf-8")
    if anchor:
        text = section(text, anchor, found.name)
    if json:
        print_json({"page": found.name, "title": found.title, "path": str(found.path), "text": text})
    else:
        _print(text)


def find(name: str) -> Page:
    """Return a page by its name in the list of pages, or by its path (docs/OPERATING.md). Raises CliError."""
    named = name.removeprefix("docs/").removesuffix(".md").lower()
    named = named.removesuffix("/readme").removeprefix("decisions/")
    found = pages()
    if named not in found:
        near = [page.name for page in found.values() if page.title.lower().startswith(f"{named}:")]
        near += difflib.get_close_matches(named, found, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise CliError(f"docs {name}: no such page; {guess}mpbroker docs lists them", USAGE_ERROR)
    return found[named]


def section(text: str, anchor: str, name: str) -> str:
    """Return the heading that `anchor` leads to and the text below it. Raises CliError if there is none."""
    lines = text.splitlines(keepends=True)
    places = list(_places(lines))
    found = next((place for place in places if place.anchor == anchor.lower()), None)
    if found is None:
        near = difflib.get_close_matches(anchor, [place.anchor for place in places], 1)
        guess = f"; did you mean {name}#{near[0]}?" if near else ""
        raise CliError(f"docs {name}#{anchor}: the page has no such heading{guess}", USAGE_ERROR)
    later = (place.line for place in places if place.line > found.line and place.level <= found.level)
    return "".join(lines[found.line : next(later, len(lines))])


class _Place(NamedTuple):
    """A target of links: a heading of level 1 to 6, or a paragraph with an anchor, which has level 7."""

    line: int
    level: int
    anchor: str


def _places(lines: list[str]) -> Iterator[_Place]:
    """Yield the targets of links into a page. Headings have the anchors that GitHub makes."""
    is_code = False
    for number, line in enumerate(lines):
        is_code ^= line.lstrip().startswith("```")
        if is_code:
            continue
        if (heading := _HEADING.match(line)) is not None:
            anchor = re.sub(r"[^\w\- ]", "", heading[2].strip().lower()).replace(" ", "-")
            yield _Place(number, len(heading[1]), anchor)
        elif (own := _ANCHOR.match(line)) is not None:
            yield _Place(number, _LEVELS + 1, own[1])


def _print(text: str) -> None:
    if sys.stdout.isatty() and sys.stdin.isatty():
        pydoc.pager(text)
    else:
        sys.stdout.write(text)
