"""The files in the tree are what the generators write, and what Kafka's own files say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol import schema
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.errors import ApiError, ErrorCode

ROOT = Path(__file__).resolve().parents[2]
KAFKA_PYTHON = Path(str(getattr(find_spec("kafka"), "origin", ""))).parent / "protocol/schemas/resources"


def tool(name: str) -> ModuleType:
    spec = spec_from_file_location(f"ops_schema_{name}", ROOT / f"ops/schema/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schema_and_keys_are_what_extract_writes() -> None:
    for path, text in tool("extract").outputs().items():
        assert path.read_text() == text, f"{path} is stale: run ops/schema/extract.py"


def test_the_classes_are_what_emit_writes() -> None:
    emit = tool("emit")
    assert emit.TARGET.read_text() == emit.messages_text(schema.load()), "run ops/schema/emit.py"


def test_every_served_api_has_its_messages() -> None:
    kept = {message.api_key for message in schema.load() if message.kind in ("request", "response")}
    assert kept == {*all_apis(), ApiKey.CONSUMER_GROUP_DESCRIBE}


def flattened(message: dict[str, Any]) -> dict[str, Any]:
    """Kafka's own JSON with the nested structs where ours has them."""
    structs = {s["name"]: s for s in message.get("commonStructs", ())}

    def collect(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if "default" in field:  # some are numbers and booleans there
                field["default"] = str(field["default"]).replace("True", "true").replace("False", "false")
            if "fields" in field:
                structs[field["type"].removeprefix("[]")] = {"fields": field["fields"]}
                collect(field["fields"])

    collect(message["fields"])
    for struct in list(structs.values()):
        collect(struct["fields"])
    return message | {"commonStructs": [{"name": name, "fields": s["fields"]} for name, s in structs.items()]}


def layout(struct: schema.StructType, version: int) -> list[object]:
    plain, tagged = struct.at(version)
    return [
        (
            f.name,
            f.is_array,
            layout(f.struct, version) if f.struct else f.type,
            version in f.nullable,
            f.tag if version in f.tagged else None,
            f.default,
        )
        for f in plain + tagged
    ]


KAFKAS_FILES = sorted([*KAFKA_PYTHON.glob("*Request.json"), *KAFKA_PYTHON.glob("*Response.json")])


def test_kafkas_own_files_are_there() -> None:
    assert len(KAFKAS_FILES) == 2 * 52


@pytest.mark.parametrize("path", KAFKAS_FILES, ids=lambda p: p.stem)
def test_layouts_agree_with_kafkas_own_files(path: Path) -> None:
    text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
    raw = json.loads(text)
    theirs = schema._parse_message(flattened(raw))
    ours = schema.message_for(theirs.kind, theirs.api_key)
    if ours is None:
        assert theirs.api_key not in all_apis()
        return
    assert (ours.name, ours.valid) == (theirs.name, theirs.valid)
    for version in ours.valid:
        assert (version in ours.flexible) == (version in theirs.flexible)
        assert layout(ours, version) == layout(theirs, version), version


def test_api_keys() -> None:
    assert len(ApiKey) == 89
    assert (ApiKey.PRODUCE, ApiKey.LIST_CONFIG_RESOURCES, max(ApiKey)) == (0, 74, 92)
    assert valid_versions(ApiKey.PRODUCE) == range(3, 14)
    assert not valid_versions(4)
    assert not valid_versions(-1)


def test_error_codes_agree_with_kio() -> None:
    assert [(e.name, int(e), e.retriable) for e in ErrorCode] == [
        (e.name.upper(), int(e), e.retriable) for e in KioErrorCode
    ]
    assert [int(e) for e in ErrorCode] == list(range(-1, 134))
    assert all(e.message for e in ErrorCode if e is not ErrorCode.NONE)


def test_api_error_has_the_codes_text_unless_told() -> None:
    assert ApiError(ErrorCode.REQUEST_TIMED_OUT).message == "The request timed out."
    error = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no dots please")
    assert (error.code.retriable, str(error)) == (False, "INVALID_TOPIC_EXCEPTION: no dots please")


@pytest.mark.process
def test_importing_the_package_parses_no_schema() -> None:
    """A broker starts in under a second, so whatever can wait for the first request does."""
    code = (
        "import mpbroker.protocol.headers, mpbroker.protocol.errors, mpbroker.protocol.schema as s, sys;"
        "assert s._raw_messages.cache_info().currsize == 0;"
        "assert 'kio' not in sys.modules and 'kafka' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
