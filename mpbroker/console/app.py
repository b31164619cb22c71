"""The console's ASGI application: serves the page and its files, and below /api the page's data as JSON.

Counters and committed offsets are as public as `/metrics`. For everything else the console is a client of the
broker (`broker_listener`), and a request may need the console's token. Changes always need the token, and a
setting that allows them.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from mpbroker.client import groups
from mpbroker.client.admin import Admin
from mpbroker.client.errors import ClientError
from mpbroker.console import access, changes, record_view, records, settings_view, tails
from mpbroker.console.broker_listener import listener_of, needs_token
from mpbroker.console.changes_audit import ChangesAudit
from mpbroker.console.files import PageFiles
from mpbroker.console.queries import Query
from mpbroker.console.statuses import FAILURES, status_of
from mpbroker.console.watch import Watch, knows_topics
from mpbroker.console.workers import Busy, Workers
from mpbroker.http.guard import Refusal, has_token, header, refused_origin
from mpbroker.http.responses import NO_SNIFFING, NOT_KEPT, respond, start
from mpbroker.http.server import Receive, Scope, Send
from mpbroker.ipc import console_token
from mpbroker.ipc.process import ProcessContext
from mpbroker.observe.offset_follower import OffsetFollower
from mpbroker.security.audit import NO_ANSWER

API: Final = "/api/"
TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 2000
GROUPS_MAX: Final = 300
READS_MAX: Final = 2
# Questions that never need the token. The others need it if visitors may do less than the console.
PUBLIC: Final = ("about", "live", "topics", "topic", "groups", "health")
NEEDS_TOKEN: Final = "this needs the console's token: open the address that mpbroker ctl console prints"
JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
# The pages run and load only files from here, and cannot be framed.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
SAFE_HEADERS: Final = (
    ("content-security-policy", POLICY),
    NO_SNIFFING,
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
PRIVATE: Final = (*SAFE_HEADERS, NOT_KEPT)

_Value = TypeVar("_Value")


class Refused(Exception):
    """Raised to refuse a request, with an HTTP status and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(status, why)


class Console:
    """The application. Handlers of paths below /api return the content of a JSON response."""

    def __init__(self, context: ProcessContext, offsets: OffsetFollower) -> None:
        self._context = context
        self._files = PageFiles()
        self._workers = Workers("console")
        self._watch = Watch(context, offsets)
        self._token = console_token.read(context.memory.public_path.parent)
        self._audit = ChangesAudit(lambda: context.config)
        self._ends = asyncio.Event()
        self._tails = 0
        self._reads = asyncio.Semaphore(READS_MAX)
        self._questions: dict[str, Callable[[Query], Awaitable[Any]]] = {
            "about": self._about,
            "live": self._live,
            "topics": self._topics,
            "topic": self._topic,
            "groups": self._groups,
            "health": self._health,
            "topic-settings": self._topic_settings,
            "group": self._group,
            "records": self._records,
            "record": self._record,
            "settings": self._settings,
            "access": self._access,
        }

    def close(self) -> None:
        """End the live tails, and stop sampling the broker."""
        self._ends.set()
        self._watch.close()
        self._workers.close()
        self._audit.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["path"].startswith(API):
            refusal = refused_origin(scope, is_change=scope["method"] == "POST")
        if refusal is not None:
            if scope["method"] == "POST":
                self._audit.denied(scope, refusal.why)
            await _answer_error(scope, send, refusal)
        elif scope["path"].startswith(API):
            await self._api(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer_error(scope, send, Refusal(405, "only GET and HEAD"))
        else:
            await self._file(scope, send)

    # ---- the page

    async def _file(self, scope: Scope, send: Send) -> None:
        found = self._files.get(scope["path"])
        if found is None:
            await _answer_error(scope, send, Refusal(404, "no such page"))
            return
        headers = (*SAFE_HEADERS, ("cache-control", "no-cache"), ("etag", found.tag))
        if header(scope, b"if-none-match") == found.tag.encode():
            await respond(scope, send, 304, None, found.kind, headers)
        else:
            await respond(scope, send, 200, found.body, found.kind, headers)

    # ---- its questions

    async def _api(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] == f"{API}change":
                answer = await self._change(scope, receive)
            elif scope["method"] != "GET":
                raise Refused(405, "only GET")
            elif scope["path"] == f"{API}tail":
                await self._tail(scope, send)
                return
            elif scope["path"] == f"{API}value":
                await self._value(scope, send)
                return
            else:
                answer = await self._found(scope)
        except Refused as error:
            await _answer_error(scope, send, error.refusal)
        except FAILURES as error:
            await _answer_error(scope, send, Refusal(status_of(error), str(error)))
        else:
            await respond(scope, send, 200, _ENCODER.encode(answer), JSON, PRIVATE)

    async def _found(self, scope: Scope) -> Any:
        name = scope["path"].removeprefix(API)
        if name not in self._questions:
            raise Refused(404, "no such question")
        if name not in PUBLIC:
            self._demand_token(scope)
        query = Query(scope["query_string"])
        if name == "about":
            query.has_token = has_token(scope, self._token)
        return await self._questions[name](query)

    def _demand_token(self, scope: Scope, *, always: bool = False) -> None:
        wants = always or self._reads_need_token
        if wants and not has_token(scope, self._token):
            is_given = header(scope, b"authorization") is not None
            # The page of a visitor without a token asks without one.
            if always or is_given:
                self._audit.refused_token(scope, "the token is wrong" if is_given else "the token is missing")
            raise Refused(401, NEEDS_TOKEN)

    @property
    def _reads_need_token(self) -> bool:
        config = self._context.config
        return needs_token(config) or bool(config.authorizer_class_name)

    async def _ask(self, work: Callable[[Admin], _Value]) -> _Value:
        """Run `work` in a worker, with a client of the broker. Raises NoListener, ClientError, Busy."""
        listener = listener_of(self._context.config)

        def ask() -> _Value:
            with listener.client() as client:
                return work(client)

        return await self._workers.do(ask)

    async def _about(self, query: Query) -> dict[str, Any]:
        config = self._context.config
        return {
            "node_id": config.node_id,
            "has_token": query.has_token,
            "needs_token": self._reads_need_token,
            "may_write": config.http_console_write,
            "log_dirs": config.log_dirs,
        }

    async def _live(self, query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        return self._watch.live(query.number("after", 0))

    async def _topics(self, query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        return _first(self._watch.topics(), "topic", query.text("q"), TOPICS_MAX)

    async def _topic(self, query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        name = query.needed("topic")
        topic = next((row for row in self._watch.topics() if row["topic"] == name), None)
        if topic is not None:
            return {"topic": topic, "rows": self._watch.partitions(name)[:PARTITIONS_MAX]}
        if knows_topics(self._watch.model.sample):
            raise Refused(404, f"topic {name} does not exist")
        raise Refused(503, "the broker is not ready: its topics are not known yet")

    async def _groups(self, query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        rows = sorted(self._watch.groups(), key=lambda row: -(row["lag"] or 0))
        tables = self._watch.tables()[:GROUPS_MAX]
        return {**_first(rows, "group", query.text("q"), GROUPS_MAX), "tables": tables}

    async def _health(self, _query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        return await self._watch.health()

    async def _topic_settings(self, query: Query) -> list[dict[str, Any]]:
        entries = await self._ask(lambda client: client.topic_configs(query.needed("topic")))
        return settings_view.topic_rows(entries)

    async def _group(self, query: Query) -> dict[str, Any]:
        await self._watch.fresh()
        name = query.needed("group")
        kind = self._watch.type_of(name)
        group = await self._ask(lambda client: groups.describe(client, name, kind=kind))
        assigned = [place for member in group.members for place in member.partitions]
        history, offsets = self._watch.lag_of(name, assigned)
        may_reset = group.state in groups.INACTIVE
        return {"group": group, "may_reset": may_reset, "history": history, "offsets": offsets}

    async def _records(self, query: Query) -> dict[str, Any]:
        return await self._read(self._decoded(query.records(record_view.PREVIEW_BYTES)))

    async def _record(self, query: Query) -> dict[str, Any]:
        return await self._read(self._decoded(query.one_record(record_view.WHOLE_BYTES)))

    def _decoded(self, wanted: records.RecordQuery) -> records.RecordQuery:
        """Return the query. If there is a schema registry, make the query decode values with schemas."""
        if not self._context.config.http_console_schema_registry_config:
            return wanted
        from mpbroker.console.schemas import decoder_of

        return replace(wanted, decoder=decoder_of(self._context.config))

    async def _read(self, wanted: records.RecordQuery) -> dict[str, Any]:
        # One batch may have a hundred megabytes. A read continues if its client disconnects, and counts.
        await self._reads.acquire()
        reading = asyncio.ensure_future(self._ask(lambda client: records.read(client, wanted)))

        def ended(done: asyncio.Future[dict[str, Any]]) -> None:
            self._reads.release()
            if not done.cancelled():
                done.exception()  # the client may have disconnected

        reading.add_done_callback(ended)
        return await asyncio.shield(reading)

    async def _value(self, scope: Scope, send: Send) -> None:
        """Respond with the bytes of a record's value, for the browser to save."""
        self._demand_token(scope)
        wanted = Query(scope["query_string"]).one_record(records.DECODED_BYTES_MAX)
        found = (await self._read(wanted))["records"]
        if not found or found[0]["offset"] != wanted.offset or found[0].get("value") is None:
            raise Refused(404, "the record does not exist, or has no value")
        value = found[0]["value"]
        body = base64.b64decode(value["b64"]) if "b64" in value else value["text"].encode()
        await respond(scope, send, 200, body, "application/octet-stream", PRIVATE)

    async def _access(self, _query: Query) -> dict[str, Any]:
        return await self._ask(access.listed)

    async def _settings(self, _query: Query) -> list[dict[str, Any]]:
        return settings_view.rows(self._context.config)

    async def _tail(self, scope: Scope, send: Send) -> None:
        self._demand_token(scope)
        wanted = self._decoded(Query(scope["query_string"]).records(record_view.PREVIEW_BYTES))
        if self._tails >= tails.TAILS_MAX:
            raise Refused(503, f"{tails.TAILS_MAX} live tails are open already: close one of them")
        tail = tails.Tail(listener_of(self._context.config).client(), wanted)
        self._tails += 1
        try:
            # A wrong query is an error of the request.
            first = await self._workers.do(tail.poll)
            await start(send, 200, LINES, PRIVATE)
            await _send_part(send, _ENCODER.encode(first) + b"\n")
            try:
                async for line in tails.lines(tail, self._workers, self._ends):
                    await _send_part(send, line)
            except (ClientError, Busy) as error:
                await _send_part(send, _ENCODER.encode({"error": str(error)}) + b"\n")
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._tails -= 1
            self._workers.leave(tail.close)

    # ---- changes

    async def _change(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        if scope["method"] != "POST":
            raise Refused(405, "only POST")
        if not self._context.config.http_console_write:
            why = "the console changes nothing: set http.console.write=true"
            self._audit.denied(scope, why)
            raise Refused(403, why)
        self._demand_token(scope, always=True)
        change = None
        try:
            change = await _change_of(scope, receive)
            answer = await self._ask(change.work(time.time_ns() // 1_000_000))
        except asyncio.CancelledError:
            self._audit.changed(scope, change, NO_ANSWER)
            raise
        except (Refused, *FAILURES) as error:
            self._audit.changed(scope, change, "failed", str(error))
            raise
        self._audit.changed(scope, change, "ok")
        self._watch.sample_soon()
        return answer


_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)


def _first(rows: list[dict[str, Any]], name: str, text: str, most: int) -> dict[str, Any]:
    found = [row for row in rows if text.lower() in row[name].lower()]
    return {"rows": found[:most], "found": len(found), "total": len(rows)}


async def _change_of(scope: Scope, receive: Receive) -> changes.Change:
    """Return the change that a request asks for. Raises Refused, TooLarge, msgspec.DecodeError."""
    if (header(scope, b"content-type") or b"").partition(b";")[0].strip() != JSON.encode():
        raise Refused(415, f"a change is {JSON}")
    return changes.decode(await _body(receive))


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _answer_error(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Respond with the status and reason of a refusal, below /api as JSON and elsewhere as text."""
    if scope["path"].startswith(API):
        body = _ENCODER.encode({"error": refusal.why})
        await respond(scope, send, refusal.status, body, JSON, PRIVATE)
    else:
        text = f"{refusal.why}\n".encode(errors="replace")
        await respond(scope, send, refusal.status, text, "text/plain; charset=utf-8", PRIVATE)
