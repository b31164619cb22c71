"""The terminal application, by its keys, on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from textual.pilot import Pilot
from textual.widgets import Input

from mpbroker.cli.top.app import DARK, LIGHT, TextScreen, TopApp, theme_of
from mpbroker.cli.top.columns import GROUPS, MEMORY, PARTITIONS, PROCESSES, REQUESTS, View
from mpbroker.cli.top.panels import Cards
from mpbroker.cli.top.table import Table
from mpbroker.cli.top.watch import BrokerFlags, Watch
from mpbroker.observe.samples import Health
from mpbroker.testing import Broker
from tests.support.filled_broker import RECORDS, fill
from tests.support.group_members import member
from tests.support.polling import PATIENCE_S

# A terminal that draws all the time is never done with a key.
INTERVAL_S = 0.4
POLL_S = 0.05


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    with Broker() as broker:
        fill(broker)
        yield broker


class Terminal:
    """The application on a terminal of this size; `pilot` presses its keys."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def table(self) -> Table:
        return self.app.query_one(Table)

    def column(self, key: str) -> list[object]:
        return [row[key] for row in self.table.shown]

    def screen(self) -> list[str]:
        """What is on the screen, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        for _ in range(int(PATIENCE_S / POLL_S)):
            if holds():
                return
            await self.pilot.pause(POLL_S)
        raise AssertionError(f"{what}: not within {PATIENCE_S} s\n" + "\n".join(self.screen()))

    async def until_seen(self, text: str) -> None:
        await self.until(lambda: any(text in line for line in self.screen()), repr(text))


@asynccontextmanager
async def on_terminal(
    broker: Broker,
    size: tuple[int, int] = (80, 24),
    view: View = PROCESSES,
    command_config: Path | None = None,
) -> AsyncIterator[Terminal]:
    wanted = BrokerFlags(log_dirs=str(broker.log_dir), command_config=command_config)
    watch = Watch(wanted)
    app = TopApp(watch, wanted, watch.first(), interval_s=INTERVAL_S, view=view)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Terminal(app, pilot)


async def test_each_view_by_its_key(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker) as terminal:
        await terminal.until_seen("running")
        assert "handler 0" in terminal.column("name")
        for key, view in (("2", REQUESTS), ("3", MEMORY), ("4", PARTITIONS), ("5", GROUPS), ("1", PROCESSES)):
            await terminal.press(key)
            await terminal.until(lambda: terminal.table.shown, view.title)
            assert terminal.app.view is view
            lines = terminal.screen()
            assert len(lines) == 24
            assert max(map(len, lines)) <= 80
            # Nothing that is there at 80 columns is cut off.
            header = next(line for line in lines if view.columns[0].title in line)
            shown = [one.title for one in view.columns if one.from_columns <= 78]
            assert all(title in header for title in shown)
        await terminal.press("left")
        assert terminal.app.view is GROUPS
        await terminal.press("tab")
        assert terminal.app.view is PROCESSES


async def test_groups_come_with_their_lag_and_details(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker, view=GROUPS) as terminal:
        await terminal.until(lambda: terminal.column("lag") == [6], "the lag")
        assert terminal.column("group") == ["billing"]
        await terminal.press("enter")
        await terminal.until_seen("orders-1: 4 of 10, lag 6")
        await terminal.press("escape")
        assert not isinstance(terminal.app.screen, TextScreen)


async def test_members_of_a_group_come_with_their_targets(filled_broker: Broker) -> None:
    with member(filled_broker.bootstrap_servers, "reading", "orders", group_protocol="consumer"):
        async with on_terminal(filled_broker, view=GROUPS, size=(100, 40)) as terminal:
            await terminal.until(lambda: "reading" in terminal.column("group"), "the group")
            await terminal.press("slash", *"reading", "enter")
            await terminal.until(lambda: terminal.column("type") == ["consumer"], "its type")
            await terminal.press("enter")
            await terminal.until_seen("target orders(0,1)")


async def test_a_wrong_command_config_is_shown_with_the_groups(shared_broker: Broker, tmp_path: Path) -> None:
    wrong = tmp_path / "client.properties"
    wrong.write_text("security.protocol=TLS\n")

    async with on_terminal(shared_broker, view=GROUPS, size=(140, 24), command_config=wrong) as terminal:
        # The path before it is long, and wraps the note.
        said = "security.protocol=TLS is not one of"
        await terminal.until(lambda: said in " ".join(map(str.strip, terminal.screen())), said)


async def test_rates_of_what_comes_in(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker, view=PARTITIONS) as terminal:
        producer = Producer({"bootstrap.servers": shared_broker.bootstrap_servers})

        def grows() -> bool:
            producer.produce("orders", b"x", partition=0)
            producer.flush(10)
            return any(row["records_per_s"] for row in terminal.table.shown)

        await terminal.until(grows, "a rate")
        # By rate, so that what is written stands first.
        first = terminal.table.shown[0]
        assert (first["topic"], first["partition"]) == ("orders", 0)
        assert max(terminal.app.model.history["messages_in_per_s"]) > 0


async def test_the_filter_and_the_way_out_of_it(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker, view=PARTITIONS) as terminal:
        await terminal.press("i")
        await terminal.until(lambda: len(terminal.table.shown) == 3, "all partitions, internal ones too")
        await terminal.press("slash", *"ord", "enter")
        assert terminal.column("topic") == ["orders", "orders"]
        assert terminal.table.has_focus
        await terminal.until_seen("filter: ord")
        await terminal.press("slash")
        assert terminal.app.query_one(Input).value == "ord"
        await terminal.press(*"none")
        await terminal.until_seen("nothing has 'none'")
        await terminal.press("escape")
        assert len(terminal.table.shown) == 3
        assert not terminal.app.query_one(Input).display


async def test_sorting_by_each_column_and_the_other_way_round(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker, view=PARTITIONS) as terminal:
        await terminal.press("S")  # before the default, records/s, is the number of the partition
        await terminal.until_seen("sort: PART")
        await terminal.press("r")
        assert [row["partition"] for row in terminal.table.shown][-1] == 1
        await terminal.press("r")
        assert next(row["partition"] for row in terminal.table.shown) == 1
        seen = set()
        for _ in range(9):
            terminal.app.action_sort(1)
            seen.add(terminal.app.sorting[PARTITIONS.key][0])
        assert seen == {
            *(None, "topic", "partition", "records_per_s", "bytes_per_s", "size_bytes", "segments"),
            *("log_start_offset", "log_end_offset"),
        }
        await terminal.pilot.click(Table, offset=(1, 0))  # the header of the first column
        assert terminal.app.sorting[PARTITIONS.key] == ("topic", False)
        await terminal.pilot.click(Table, offset=(1, 0))
        assert terminal.app.sorting[PARTITIONS.key] == ("topic", True)


async def test_a_sample_that_comes_while_widgets_are_removed_is_dropped(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker) as terminal:
        await terminal.app.query_one("#headline").remove()
        terminal.app._add(None, None)


async def test_the_cursor_stays_on_its_row(shared_broker: Broker) -> None:
    many = shared_broker.create_topic("many", partitions=20)

    async with on_terminal(shared_broker, view=PARTITIONS) as terminal:
        table = terminal.table
        await terminal.until(lambda: len(table.shown) == 22, "all partitions of clients' topics")
        # The bar at the right takes nothing of the last column.
        assert "END" in next(line for line in terminal.screen() if "TOPIC" in line)
        await terminal.press("i")
        await terminal.until(lambda: len(table.shown) == 23, "internal ones, too")
        terminal.app.sorting[PARTITIONS.key] = ("topic", False)
        await terminal.press("r", "r", "end")
        assert table.selected is not None
        assert table.selected["topic"] == "orders"
        assert any("orders" in line for line in terminal.screen())
        await terminal.press("up", "pageup", "home")
        assert table.selected["topic"] == "__consumer_offsets"
        await terminal.press("r")
        assert table.selected["topic"] == "__consumer_offsets"
        assert table.cursor_row == 22
    shared_broker.delete_topic(many)


async def test_a_paused_terminal_stays_as_it_is(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker) as terminal:
        await terminal.press("p")
        await terminal.until_seen("PAUSED")
        before, seen = terminal.table.shown, terminal.app.model.sample
        await terminal.until(lambda: terminal.app.model.sample is not seen, "another sample")
        assert terminal.table.shown is before
        await terminal.press("p")
        await terminal.until(lambda: terminal.table.shown is not before, "it goes on")


async def test_help_themes_and_the_end(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker) as terminal:
        terminal.app.theme = DARK
        await terminal.press("t")
        assert terminal.app.theme == LIGHT
        await terminal.press("t")
        assert terminal.app.theme == DARK
        await terminal.press("question_mark")
        await terminal.until_seen("the last ten seconds")
        await terminal.press("q")
        assert not isinstance(terminal.app.screen, TextScreen)
        await terminal.press("q")
        assert not terminal.app.is_running


async def test_a_broker_that_is_killed_while_it_is_watched_comes_back(filled_broker: Broker) -> None:
    async with on_terminal(filled_broker) as terminal:
        pid = filled_broker.pid
        await terminal.until_seen("● running")
        filled_broker.kill()
        await terminal.until_seen("● not running")
        await terminal.until_seen("the last stop was not clean: the next")
        await terminal.until_seen("4 shows the partitions in its directories")
        await terminal.press("4")
        await terminal.until(lambda: RECORDS in terminal.column("log_end_offset"), "its partitions")
        await terminal.press("5")
        await terminal.until(lambda: terminal.column("state") == ["stopped"], "its groups")
        filled_broker.start()
        await terminal.until_seen("● running")
        sample = terminal.app.model.sample
        assert sample is not None
        assert sample.broker.health is Health.RUNNING
        assert sample.broker.pid not in (None, pid)
        await terminal.until(lambda: terminal.column("state") == ["Empty"], "its groups, from the broker")


@pytest.mark.parametrize(("size", "cards"), [((40, 12), 2), ((80, 24), 4), ((140, 40), 6)])
async def test_terminals_of_any_size(shared_broker: Broker, size: tuple[int, int], cards: int) -> None:
    async with on_terminal(shared_broker, size) as terminal:
        await terminal.until_seen("running")
        titles = ("In", "Out", "Requests", "Produce", "CPU", "Memory (PSS)")
        (line,) = [line for line in terminal.screen() if line.strip().startswith("In ")]
        assert [title in line for title in titles] == [number < cards for number in range(len(titles))]
        assert terminal.app.query_one(Cards).size.height == (6 if size[1] >= 34 else 4)
        assert max(map(len, terminal.screen())) <= size[0]


async def test_a_tab_can_be_clicked(shared_broker: Broker) -> None:
    async with on_terminal(shared_broker) as terminal:
        at = next(line for line in terminal.screen() if "4 Partitions" in line).index("4 Partitions")
        await terminal.pilot.click("#tabs", offset=(at - 1, 0))
        await terminal.pilot.pause()
        assert terminal.app.view is PARTITIONS
        assert terminal.app.query_one("#headline").size.height == 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, DARK),
        ({"COLORFGBG": "15;0"}, DARK),
        ({"COLORFGBG": "0;default;15"}, LIGHT),
        ({"COLORFGBG": "12;8"}, DARK),
        ({"COLORFGBG": "0;7"}, LIGHT),
        ({"COLORFGBG": "default;default"}, DARK),
    ],
)
def test_the_theme_fits_the_background(environ: dict[str, str], expected: str) -> None:
    assert theme_of(environ) == expected
