"""The console's page in a headless Chromium, by clicks and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from mpbroker.protocol.table_progress import TableNote, group_of
from mpbroker.reading.group_progress import GroupProgress
from mpbroker.reading.options import parse_options
from mpbroker.registry.json_values import Encoder
from mpbroker.registry.schemas import Kind, Schema
from mpbroker.testing import Broker
from ops.docs.browser import Browser
from tests.console.conftest import BIG_BYTES, HOSTILE, Api, produce, transact
from tests.support.group_members import commit, member
from tests.support.http_broker import replace
from tests.support.polling import until
from tests.support.schema_registry import SchemaRegistry

PHONE = (390, 844)
VIEWS = ("Overview", "Topics", "Groups", "Pipeline", "Access", "Settings", "Health")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def filled(broker: Broker, api: Api) -> str:
    """A topic with records of several kinds and a group that is behind, seen by the console already."""
    topic = broker.create_topic("orders", partitions=2)
    document = json.dumps({"id": 12345678901234567890, "name": "Ada", "tags": [], "none": None})
    produce(
        broker,
        topic,
        {"value": HOSTILE, "key": "<b>k</b>", "headers": [("<i>h</i>", b"<u>v</u>")]},
        {"value": document, "key": "json"},
        {"value": b"\xff\xfe", "key": "binary"},
        {"value": None, "key": "tombstone"},
        {"value": "x" * BIG_BYTES, "key": "big"},
    )
    transact(broker, topic, "in a transaction", commits=True)
    commit(broker.bootstrap_servers, "billing", topic, {0: 2})
    options = {"subscribe": topic, "kafka.bootstrap.servers": broker.bootstrap_servers}
    progress = GroupProgress(group_of("lake.orders"), parse_options(options))
    note = TableNote(rows=12345, files=2, bytes=2_000_000, problem="the <b>store</b> does not answer")
    progress.reached({(topic, 0): 3}, metadata=note.text())
    until(lambda: api.found("groups", q="billing")["rows"], "the group is known")
    return topic


@pytest.fixture(scope="module")
def http_settings(registry_settings: dict[str, str]) -> dict[str, str]:
    return registry_settings


@pytest.fixture
def page(chromium: Browser, api: Api, filled: str) -> Iterator[Browser]:
    """The page, opened anew and without a token. What goes wrong in it fails the test."""
    assert filled
    chromium.resize(1280, 800)
    chromium.errors.clear()
    chromium.open(api.url)
    chromium.sees("running", "#health")
    try:
        yield chromium
        assert chromium.errors == []
        assert chromium.js("document.title") != "owned"
    finally:
        if not chromium.js("location.href").startswith(api.url):
            chromium.open(api.url)
        chromium.js("sessionStorage.clear(); localStorage.clear(); null")
        chromium.open("about:blank")


def visit(page: Browser, api: Api, place: str) -> None:
    page.js(f"location.hash = {json.dumps(place)}; null")
    assert page.js("location.href").startswith(api.url)


def show(page: Browser, api: Api, view: str, wanted: str = "main table, main .card") -> None:
    """Go from another view to this one, and wait until it has replaced that."""
    page.js("document.querySelector('main').firstElementChild.dataset.old = 'yes'; null")
    visit(page, api, f"#/{view}")
    page.until(
        f"!document.querySelector('[data-old]') && !!document.querySelector({json.dumps(wanted)})",
        f"{view} is there",
    )


def change_answers(page: Browser, place: str, change: str) -> None:
    """Change what the page gets from a place: `found` is the answer."""
    page.js(f"""
      const ask = window.fetch;
      window.fetch = async (place, ...more) => {{
        const answer = await ask(place, ...more);
        if (!String(place).includes({json.dumps(place)})) return answer;
        const found = await answer.json();
        {change};
        return Response.json(found);
      }};
      null""")


def fill_in(page: Browser, submit: str, **fields: str) -> None:
    """Fill the fields of the dialog, and click its button."""
    for name, text in fields.items():
        page.fill(f"dialog [name={name}]", text)
    page.click("dialog button[type=submit]", submit)


def known_topic(broker: Broker, api: Api, *records: dict[str, Any], partitions: int = 1) -> str:
    """Make a topic of these records, which the console has seen."""
    topic = broker.create_topic(partitions=partitions)
    produce(broker, topic, *records)
    until(lambda: api.found("topics", q=topic)["rows"], "the topic is known")
    return topic


def test_every_view_by_click_and_by_key(page: Browser) -> None:
    for number, name in enumerate(VIEWS, 1):
        page.click("#nav a", name)
        page.until(
            f"document.querySelector('#nav [aria-current]').innerText.includes({name!r})", f"{name} is chosen"
        )
        page.press("1")
        page.until("location.hash === '#/overview'", "1 is the overview")
        page.press(str(number))
        page.until(f"location.hash === '#/{name.lower()}'", f"{number} is {name}")
    page.press("?")
    page.sees("live tail of a topic", "dialog")
    page.press("Escape")
    page.until("!document.querySelector('dialog')", "the dialog is closed")


def test_the_overview_is_live(page: Browser) -> None:
    page.sees("handler 0")
    page.sees("Produce")
    page.until("document.querySelectorAll('.plot path.line').length >= 3", "lines are drawn")
    page.sees("127.0.0.1", "#about")


def test_a_record_is_found_opened_and_shown_in_three_ways(page: Browser, filled: str) -> None:
    page.click("#nav a", "Topics")
    page.click("tr.opens", filled)
    page.sees("tombstone", ".records")
    page.sees("null (tombstone)", ".records")
    page.sees("ff fe", ".records")
    page.sees("Transaction committed", ".records")
    page.fill(".records .search", "ada")
    page.press("Enter")
    page.sees("1 record ·", ".records .said")
    page.until("document.querySelector('mark')?.innerText === 'Ada'", "what was searched for is marked")
    page.click(".records tr.opens")
    page.sees('"id": 12345678901234567890,', ".detail section:last-child pre")
    page.sees('"tags": [],', ".detail")
    page.click(".detail section:last-child button", "Hex")
    page.sees("000000  7b 22 69 64", ".detail section:last-child pre")
    page.click(".detail section:last-child button", "Text")
    page.sees('{"id": 123456789', ".detail section:last-child pre")


def test_a_value_with_a_schema_is_json_and_says_whose(
    page: Browser, broker: Broker, api: Api, registry: SchemaRegistry
) -> None:
    """Names and texts of schemas are strangers' too."""
    fields = [{"name": "html", "type": "string"}, {"name": "raw", "type": "bytes"}]
    number = registry.add("s", {"type": "record", "name": "shop.Order", "fields": fields})["id"]
    value = Encoder(Schema(Kind.AVRO, registry.schemas[number]["schema"], id=number)).encode(
        json.dumps({"html": HOSTILE, "raw": "AAE="}).encode()
    )
    topic = broker.create_topic()
    produce(broker, topic, {"value": value, "key": "k"})
    until(lambda: api.get("topic", topic=topic).status == 200, "the topic is known")
    visit(page, api, f"#/topics/{topic}")
    page.sees('{"html":"<script>', ".records")
    page.click(".records tr.opens", "k")
    page.sees(f"shop.Order · AVRO · schema {number}", ".detail .schema")
    page.sees('"raw": "AAE="', ".detail section:last-child pre")
    page.click(".detail section:last-child button", "Hex")
    page.sees(f"000000  00 00 00 00 0{number}", ".detail section:last-child pre")


def test_what_a_hostile_record_holds_is_text(page: Browser, api: Api, filled: str) -> None:
    visit(page, api, f"#/topics/{filled}")
    page.sees("<script>", ".records")
    page.click(".records tr.opens", "<b>k</b>")
    page.sees("<i>h</i>", ".detail")
    page.sees("<u>v</u>", ".detail")
    assert page.js("document.querySelectorAll('main script, main img, main b.k, main u').length") == 0


def test_a_long_value_says_that_it_is_cut(page: Browser, api: Api, filled: str) -> None:
    visit(page, api, f"#/topics/{filled}")
    page.click(".records tr.opens", "big")
    page.sees("the first 262 kB of 900 kB", ".detail .cut")


def test_json_that_is_nested_too_deeply_is_shown_as_text(page: Browser, api: Api, broker: Broker) -> None:
    levels = 32_000
    nested = "[" * levels + "]" * levels
    topic = known_topic(broker, api, {"value": nested})
    assert page.js(f"import('/value.js').then((it) => it.pretty({json.dumps(nested)}))") is None
    assert page.js("import('/value.js').then((it) => it.pretty('[' + '[1],'.repeat(900000) + '1]'))") is None
    assert page.js("import('/value.js').then((it) => it.pretty('[[1], {}]').join('|'))")
    visit(page, api, f"topics/{topic}/records")
    page.click(".records tr.opens")
    page.sees("nested too deeply", ".detail")
    page.sees("[[[[", ".detail section:last-child pre")
    assert page.js("document.querySelector('.detail section:last-child pre').innerText.length") == 2 * levels


def test_json_is_shown_as_people_write_it(page: Browser, api: Api, broker: Broker) -> None:
    value = json.dumps({"größe": "Grüße 🚀 \u202e", "n": 12345678901234567890})
    topic = known_topic(broker, api, {"value": value})
    visit(page, api, f"topics/{topic}/records")
    page.sees("Grüße 🚀 \\u202e", ".records tr.opens")
    page.click(".records tr.opens")
    page.sees('"größe": "Grüße 🚀 \\u202e"', ".detail pre")
    page.sees("12345678901234567890", ".detail pre")
    page.fill(".records .search", "Grüße")
    page.press("Enter")
    page.sees("Grüße", ".records mark")


def test_records_and_users_are_made_by_clicks(page: Browser, api: Api, broker: Broker) -> None:
    topic = known_topic(broker, api, partitions=3)
    with_token(page, api)
    visit(page, api, f"topics/{topic}/records")
    page.click("button", "Produce")
    fill_in(page, "Produce record", value="made by clicks", key="k", headers="a=b")
    page.sees("made by clicks", ".records tr.opens")
    page.click("button", "Delete records")
    fill_in(page, "Delete records", before="latest", typed=topic)
    page.sees("No records", ".records .said")
    page.click("#nav a", "Access")
    page.sees("the broker has no authorizer")
    page.click("button", "New user")
    fill_in(page, "Save user", user="ann", password="secret")
    page.sees("ann", "table")
    page.click("table button", "Remove")
    fill_in(page, "Remove user", typed="ann")
    page.sees("No users with a SCRAM password")


def test_a_live_tail_begins_and_ends_by_key(page: Browser, api: Api, broker: Broker, filled: str) -> None:
    visit(page, api, f"#/topics/{filled}")
    page.sees("tombstone", ".records")
    page.press("t")
    page.sees("Live · waiting", ".records .said")
    produce(broker, filled, {"value": "comes live"})
    page.sees("comes live", ".records")
    page.press("t")
    page.sees("Tail ended", ".records .said")


def test_rows_by_keys_and_the_way_back(page: Browser, api: Api, filled: str) -> None:
    visit(page, api, "#/topics")
    page.sees(filled, "table")
    page.press("/")
    page.until("document.activeElement.type === 'search'", "the search has the focus")
    page.write(filled)
    page.press("Escape")
    page.press("j")
    page.until("document.activeElement.matches('tr.opens')", "a row has the focus")
    page.press("Enter")
    page.until(f"location.hash === '#/topics/{filled}'", "the topic is open")
    page.press("Escape")
    page.until("location.hash === '#/topics'", "and closed")


def test_a_group_has_its_lag_and_its_partitions(page: Browser, filled: str) -> None:
    page.click("#nav a", "Groups")
    page.sees("12,345", "table[aria-label=Tables]")
    page.sees("the <b>store</b> does not answer", "table[aria-label=Tables] .bad")
    page.click("tr.opens", "billing")
    page.sees("Empty", ".facts")
    page.sees(filled, "table")
    page.until("document.querySelectorAll('.plot path, .plot circle').length > 0", "the lag is drawn")


def test_the_picture_has_the_processes_and_their_rings(page: Browser) -> None:
    page.click("#nav a", "Pipeline")
    boxes = "[...document.querySelectorAll('.box-title')]"
    for name in (
        "Kafka clients",
        "acceptor",
        "processor",
        "handler",
        "log worker",
        "coordinator",
        "log.dirs",
    ):
        page.until(f"{boxes}.some((one) => one.textContent.includes('{name}'))", name)
    page.sees("processor → handler")


def test_settings_by_source_and_text(page: Browser) -> None:
    page.click("#nav a", "Settings")
    page.sees("admin.listener.names")
    page.click("button", "Set by somebody")
    page.sees("http.console.write")
    page.until("!document.body.innerText.includes('admin.listener.names')", "defaults are left out")
    page.fill("main .search", "journal")
    page.sees("log.journal.bytes")


def test_health(page: Browser) -> None:
    page.click("#nav a", "Health")
    page.sees("Recovery is over, each listener answers")
    page.sees("no damage")


def test_changes_need_the_token_and_a_second_look(page: Browser, api: Api) -> None:
    page.click("#nav a", "Topics")
    page.sees("orders", "table")
    assert not page.js(
        "[...document.querySelectorAll('button')].some((b) => b.innerText === 'New topic' && !b.hidden)"
    )
    page.click("#token")
    page.write("wrong")
    page.press("Enter")
    page.sees("not this broker's token", "dialog")
    page.press("Escape")
    with_token(page, api)
    page.click("#nav a", "Topics")
    page.click("button", "New topic")
    page.until("document.activeElement.name === 'topic'", "the name has the focus")
    fill_in(page, "Create topic", topic="by-clicks", partitions="3")
    page.sees("created topic by-clicks with 3 partitions", "#toast")
    page.click("tr.opens", "by-clicks")
    page.click(".actions button:last-child", "Delete")
    fill_in(page, "Delete topic")
    page.sees("Type by-clicks to confirm.", "dialog")
    fill_in(page, "Delete topic", typed="by-clicks")
    page.sees("deleted topic by-clicks", "#toast")
    page.sees("orders", "table")
    assert not page.js("document.querySelector('table').innerText.includes('by-clicks')"), "it goes at once"
    until(lambda: api.get("topic", topic="by-clicks").status == 404, "a look has seen that it is gone")


def test_a_topic_with_more_partitions_than_the_table_has(page: Browser, api: Api, filled: str) -> None:
    with_token(page, api)
    # A topic of so many takes a minute to make.
    change_answers(page, "api/topic?", "found.topic.partitions = 2100")
    visit(page, api, f"#/topics/{filled}/2099")
    page.until("document.querySelector('.records select')?.value === '2099'", "the last one is chosen")
    page.sees("has no partition 2099", ".records .said")
    page.sees("2,100", ".facts")
    visit(page, api, f"#/topics/{filled}/2100")
    page.sees("has no partition 2100", "main")
    visit(page, api, f"#/topics/{filled}/partitions")
    page.sees("The first 2 of 2,100 partitions", "main")
    page.click("button", "Add partitions")
    page.sees("now 2100", "dialog")
    page.press("Escape")
    page.open("about:blank")
    assert ["partition=2099" in one for one in page.errors] == [True], "the topic has two in truth"
    page.errors.clear()


def test_offsets_are_reset_after_a_preview(page: Browser, api: Api, filled: str) -> None:
    with_token(page, api)
    visit(page, api, "#/groups/billing")
    page.sees("Empty", ".facts")
    page.click("button", "Reset offsets")
    fill_in(page, "Preview")
    page.sees(filled, "dialog table")
    fill_in(page, "Set these offsets")
    page.sees("set 1 offset of group billing", "#toast")
    assert api.change("reset-offsets", group="billing", to="to-offset", value="2", execute=True).status == 200


def test_light_and_dark(page: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    light = page.js(ground)
    page.prefer("dark")
    dark = page.until(f"{ground} !== {json.dumps(light)} && {ground}", "the system's choice counts")
    page.click("#theme")
    page.until(f"{ground} === {json.dumps(light)}", "one click: light")
    page.press("d")
    page.until(f"{ground} === {json.dumps(dark)}", "another one: dark")
    page.prefer("light")
    page.reload()
    page.until(f"{ground} === {json.dumps(dark)}", "the choice is remembered")


def test_nothing_is_wider_than_a_phone(page: Browser, api: Api) -> None:
    page.resize(*PHONE)
    for view in ("topics", "topics/orders", "groups/billing", "pipeline", "settings", "health", "overview"):
        show(page, api, view)
        # The longest words that the top of the page may have.
        page.js("document.getElementById('zone').textContent = 'UTC+05:30'; null")
        words = "{textContent: 'supervisor silent', className: 'pill warn'}"
        page.js(f"Object.assign(document.getElementById('health'), {words}); null")
        assert page.js("document.documentElement.scrollWidth") <= PHONE[0], view


def test_everything_to_use_has_a_name(page: Browser, api: Api, filled: str) -> None:
    unnamed = """[...document.querySelectorAll("button, a[href], input, select, table, svg[role=img]")]
      .filter((one) => one.getClientRects().length && !(one.innerText || one.ariaLabel || one.title
        || one.labels?.length || one.getAttribute("aria-label"))).map((one) => one.outerHTML.slice(0, 100))"""
    for view in ("topics", f"topics/{filled}", "groups", "pipeline", "settings", "health", "overview"):
        show(page, api, view)
        assert page.js(unnamed) == [], view


def test_what_does_not_exist_is_said_with_a_way_back(page: Browser, api: Api, filled: str) -> None:
    for place, said, back in (
        ("topics/nope", "There is no topic nope", "#/topics"),
        ("groups/nope", "There is no group nope", "#/groups"),
        (f"topics/{filled}/99", f"Topic {filled} has no partition 99", f"#/topics/{filled}/partitions"),
        (f"topics/{filled}/nope", f"Topic {filled} has no part nope", f"#/topics/{filled}"),
        ("nope", "There is no view nope", "#/overview"),
    ):
        visit(page, api, f"#/{place}")
        page.sees(said, "main h1")
        assert "Reset offsets" not in page.text("main")
        page.click("main a")
        page.until(f"location.hash === {json.dumps(back)}", "the way back")
    # Chromium notes each 404.
    assert {one.partition(" ")[0] for one in page.errors} <= {"Failed"}
    page.errors.clear()


def test_a_new_topic_is_seen_among_more_than_are_listed(page: Browser, api: Api) -> None:
    with_token(page, api)
    page.click("#nav a", "Topics")
    # The list as it is with more topics than an answer has: without the new one.
    change_answers(
        page,
        "api/topics?",
        """if (String(place).endsWith("?")) {
             found.rows = found.rows.filter((one) => !one.topic.startsWith("zz"));
             found.found = found.total = 2000;
           }""",
    )
    page.sees("of 2,000 topics: search for others", ".said")
    page.click("button", "New topic")
    fill_in(page, "Create topic", topic="zz-among-many")
    page.sees("zz-among-many", "tr.opens")
    page.open("about:blank")
    page.open(api.url)


def test_a_console_that_is_read_only_says_how_to_change_that(chromium: Browser) -> None:
    with Broker({"http.listener": "127.0.0.1:0"}) as broker:
        chromium.open(Api(broker).url)
        chromium.sees("Read-only", "#token")
        chromium.click("#token")
        chromium.sees("This console is read-only", "dialog")
        for said in ("http.console.write=true", "mpbroker ctl reload", "mpbroker ctl console"):
            chromium.sees(said, "dialog")
        chromium.open("about:blank")


def test_a_topic_is_shown_as_soon_as_it_is_made(page: Browser, api: Api, broker: Broker) -> None:
    visit(page, api, "#/topics/comes-later")
    page.sees("There is no topic comes-later", "main h1")
    broker.create_topic("comes-later")
    page.sees("No records", ".records .said")
    page.errors.clear()


def test_a_partition_has_an_address(page: Browser, api: Api, filled: str) -> None:
    visit(page, api, f"#/topics/{filled}/partitions")
    page.click("tr.opens", "1")
    page.until(f"location.hash.startsWith('#/topics/{filled}/')", "the partition is open")
    visit(page, api, f"#/topics/{filled}/1")
    page.sees("No records", ".records .said")
    assert page.js("document.querySelector('.records select').value") == "1"


def test_times_have_their_day_and_the_page_says_their_zone_once(
    page: Browser, api: Api, broker: Broker
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, {"value": "old", "timestamp": 1_700_000_000_000}, {"value": "new"})
    until(lambda: api.get("topic", topic=topic).status == 200, "the topic is seen")
    page.command("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    try:
        page.reload()
        page.sees("UTC+05:30", "#zone")
        assert "Asia/Calcutta" in (title := page.js("document.getElementById('zone').title")) or (
            "Asia/Kolkata" in title
        )
        visit(page, api, f"#/topics/{topic}")
        page.sees("2023-11-15 03:43:20.000", ".records")
        today = page.js("[...document.querySelectorAll('td.r-time')].map((one) => one.innerText)[0]")
        assert len(today) == len("03:43:20.000"), today
        page.click(".records tr.opens", "old")
        page.sees("2023-11-15 03:43:20.000 UTC+05:30", ".detail")
        page.choose("[aria-label='Where to begin']", "time")
        page.fill("[aria-label='Offset or time']", "2023-11-15T03:43:21")
        page.press("Enter")
        page.sees("1 record ·", ".records .said")
    finally:
        page.command("Emulation.setTimezoneOverride", timezoneId="")


def button(text: str) -> str:
    """Return an expression for the button with a text."""
    return (
        f"[...document.querySelectorAll('main button')].find((one) => one.innerText === {json.dumps(text)})"
    )


def with_token(page: Browser, api: Api) -> None:
    page.js(f"location.hash = 'token={api.token}'; null")
    page.until("location.hash === '#/overview'", "the token does not stay in the address")
    page.until("document.getElementById('token').hidden", "the token counts")


def test_the_brokers_own_topics_offer_no_changes(page: Browser, api: Api, filled: str) -> None:
    with_token(page, api)
    visit(page, api, "#/topics/__consumer_offsets")
    page.sees("internal", "main .title")
    assert "Delete" not in page.text("main .title")
    assert "Add partitions" not in page.text("main .title")
    visit(page, api, f"#/topics/{filled}")
    page.sees("Delete", "main .title")
    assert "internal" not in page.text("main .title")


def test_an_active_group_offers_no_reset_and_tells_what_is_not_committed(
    page: Browser, api: Api, broker: Broker, filled: str
) -> None:
    with_token(page, api)
    with member(broker.bootstrap_servers, "active", filled) as consumer:
        consumer.commit(offsets=[TopicPartition(filled, 0, 1)], asynchronous=False)
        visit(page, api, "#/groups/active")
        page.sees("The group is Stable: stop its consumers to reset offsets", "main .title")
        page.sees("in 1 partition; 1 partition has no commit", ".facts")
        page.sees("A partition without a commit has no lag", ".said")
        assert page.js(f"{button('Reset offsets')}.disabled")
        visit(page, api, "#/groups")
        page.sees("+ 1 without", "table tr.opens")
        page.sees("partitions of the group's topics without a commit")
    visit(page, api, "#/groups/active")
    page.sees("Empty", ".facts")
    page.click("button", "Reset offsets")
    page.sees("Reset offsets of active", "dialog")


def test_members_of_the_consumer_protocol_have_a_state_and_a_target(
    page: Browser, api: Api, broker: Broker, filled: str
) -> None:
    with member(broker.bootstrap_servers, "modern", f"^{filled}$", group_protocol="consumer"):
        visit(page, api, "#/groups/modern")
        page.sees("consumer, uniform", ".facts")
        page.sees("Epoch", ".facts")
        page.sees(f"pattern (^{filled}$)", "main")
        page.sees("stable", "main")
        visit(page, api, "#/groups")
        page.sees("modern\tconsumer", "main")


def test_bars_and_shares_say_what_they_are(page: Browser, api: Api) -> None:
    visit(page, api, "#/health")
    for part in ("Its file system has", "segments", "commit journal and reserve", "everything else", "free"):
        page.sees(part, "main")
    visit(page, api, "#/pipeline")
    page.sees("Fetches that find no records yet wait for them", "main")
    visit(page, api, "#/settings")
    page.sees("How to change it", "main")
    page.sees("mpbroker config set", "main")


def test_partitions_without_a_leader_are_told(page: Browser, api: Api) -> None:
    change_answers(page, "api/health", "found.offline_partitions = 2")
    visit(page, api, "#/health")
    page.sees("2 partitions offline", "main .state.bad")
    page.sees("2 partitions have no leader and can be neither read nor written", "main")
    page.open("about:blank")


@pytest.mark.parametrize("size", [(1280, 800), PHONE])
def test_each_ring_has_an_arrow_that_shows_when_it_is_full(
    page: Browser, api: Api, size: tuple[int, int]
) -> None:
    between = {f"{one['from']} → {one['to']}" for one in api.found("live", after=0)["rings"]}
    assert between > {"log → processor", "coordinator → log", "log → coordinator", "background → log"}
    change_answers(page, "api/live?", "found.rings.forEach((ring) => { ring.fill = 0.9; })")
    page.resize(*size)
    visit(page, api, "#/pipeline")
    page.until(f"document.querySelectorAll('.way.full').length === {len(between)}", "each full ring is shown")
    titles = page.js("[...document.querySelectorAll('.way.full title')].map((one) => one.textContent)")
    assert {one.partition(":")[0] for one in titles} == between
    names = page.js("document.querySelector('.pipeline').getAttribute('aria-label')")
    assert "3 background" in names
    page.open("about:blank")


def test_records_and_filters_are_readable_on_a_phone(page: Browser, api: Api, filled: str) -> None:
    page.resize(*PHONE)
    visit(page, api, f"#/topics/{filled}")
    page.sees("tombstone", ".records")
    widths = page.js("[...document.querySelectorAll('td.r-value')].map((one) => one.clientWidth)")
    assert min(widths) > 300, widths
    visit(page, api, "#/settings")
    page.sees("Default", ".group")
    cut = """[...document.querySelectorAll(".group button")]
      .filter((one) => one.getBoundingClientRect().right > innerWidth - 8).map((one) => one.innerText)"""
    assert page.js(cut) == []


CONTROLS = """[...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")]
  .filter((one) => one.getClientRects().length && !one.disabled && !one.reached)"""
# Marks what has the focus, which no refresh of a table takes away, and returns it if nothing shows that.
REACH = """(() => {
  const one = document.activeElement;
  one.reached = true;
  const { outlineStyle, outlineWidth } = getComputedStyle(one);
  const isShown = outlineStyle !== "none" && parseFloat(outlineWidth) >= 1;
  return one === document.body || isShown ? "" : one.outerHTML.slice(0, 100);
})()"""


def test_each_control_is_reached_by_tab_and_shows_that_it_has_the_focus(page: Browser, api: Api) -> None:
    with_token(page, api)
    views = ("topics", "topics/orders", "topics/orders/partitions", "groups/billing", "settings", "overview")
    for view in views:
        show(page, api, view, "main table tbody tr")
        page.js("document.querySelectorAll('*').forEach((one) => delete one.reached); null")
        for _ in range(page.js(f"{CONTROLS}.length") + 5):
            page.press("Tab")
            assert not page.js(REACH)
        assert page.js(f"{CONTROLS}.map((one) => one.outerHTML.slice(0, 100))") == [], view


def test_a_link_keeps_the_focus_while_its_row_changes(
    page: Browser, api: Api, broker: Broker, filled: str
) -> None:
    visit(page, api, "#/groups/billing")
    link = f"[...document.querySelectorAll('main td a')].find((one) => one.innerText === {filled!r})"
    page.until(f"!!{link}", "the row is there")
    page.js(f"{link}.focus()")
    before = page.js(f"{link}.closest('tr').innerText")
    commit(broker.bootstrap_servers, "billing", filled, {0: 3})
    page.until(f"{link}.closest('tr').innerText !== {before!r}", "the row shows the commit")
    commit(broker.bootstrap_servers, "billing", filled, {0: 2})
    page.until(f"{link}.closest('tr').innerText === {before!r}", "the row is as it was")
    assert page.js(f"document.activeElement === {link}")


def test_a_dialog_closes_by_escape_and_gives_the_focus_back(page: Browser, api: Api) -> None:
    with_token(page, api)
    visit(page, api, "#/topics")
    page.until(f"!!{button('New topic')}", "changes are offered")
    page.js(f"{button('New topic')}.focus()")
    page.press("Enter")
    page.until("!!document.querySelector('dialog[open]')", "the dialog is open")
    page.press("Escape")
    page.until("!document.querySelector('dialog')", "the dialog is closed")
    page.until("document.activeElement.innerText === 'New topic'", "the focus is where it was")


def test_the_search_of_each_view_that_has_one_takes_a_slash(page: Browser, api: Api, filled: str) -> None:
    for view in ("topics", f"topics/{filled}", "groups", "settings"):
        visit(page, api, f"#/{view}")
        page.until("!!document.querySelector('main input[type=search]')", "the search is there")
        page.press("/")
        page.until("document.activeElement.type === 'search'", f"the search of {view} has the focus")
        page.press("Escape")


def test_an_exporter_that_dies_is_told_and_a_tail_goes_on(own_broker: Broker, chromium: Browser) -> None:
    own = Api(own_broker)
    topic = own_broker.create_topic()
    chromium.open(own.url)
    chromium.sees("running", "#health")
    chromium.js(f"location.hash = '#/topics/{topic}'; null")
    chromium.sees("No records", ".records .said")
    chromium.press("t")
    chromium.sees("Live · waiting", ".records .said")
    replace(own_broker, "exporter")

    def tailed() -> bool:
        produce(own_broker, topic, {"value": "after the death"})
        return "after the death" in chromium.text(".records")

    until(tailed, "the tail goes on by itself")
    chromium.sees("running", "#health")
    chromium.open("about:blank")
    chromium.errors.clear()


def test_a_page_of_another_site_gets_nothing(page: Browser, api: Api, own_broker: Broker) -> None:
    """Another origin on this very host: what a hostile page in the same browser is to the console."""
    stranger = Api(own_broker)
    page.open(f"{stranger.url}healthz")
    tried = f"""fetch({json.dumps(api.url + "api/about")}).then((one) => one.text(), () => "nothing")"""
    assert page.js(tried) == "nothing"
    blind = f"""fetch({json.dumps(api.url + "api/change")}, {{method: "POST", mode: "no-cors",
      body: '{{"change":"create-topic","topic":"forged"}}'}}).then(() => "sent", () => "nothing")"""
    page.js(blind)
    assert api.get("records", topic="forged").status == 404
    page.errors.clear()
