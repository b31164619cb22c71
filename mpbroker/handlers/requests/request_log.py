"""The handler's part of the request log: a request and its response as JSON (Kafka: RequestConvertToJson).

When the last byte of the response is written, the processor adds the times and writes the line: see
network/processor/request_log.py. Of record data only the size is written, and secrets are hidden.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import msgspec

from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import Message
from mpbroker.protocol.schema import Field, Kind, StructType, message_for
from mpbroker.protocol.uuids import uuid_text

HIDDEN = "[hidden]"
SECRETS = {"auth_bytes", "salt", "salted_password", "hmac"}
# Values of settings may be passwords. Kafka knows which are, and hides those of a type that it does not know.
ALTERS_CONFIGS = {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}


def describe(request: ReceivedRequest, listener: str, response: Message | None) -> bytes:
    """Describe a request as a JSON object without its closing brace: the processor appends the times.

    Kafka's `requestApiVersionDeprecated` is left out: Kafka writes it only if it is true, and no version that
    is served is deprecated.
    """
    slot, session = request.slot, request.session
    known: dict[str, Any] = {
        "isForwarded": False,
        "requestHeader": {
            "requestApiKey": slot.api_key,
            "requestApiVersion": slot.api_version,
            "correlationId": slot.correlation,
            "clientId": request.client_id,
            "requestApiKeyName": ApiKey(slot.api_key).name,
        },
        "request": as_json("request", slot.api_key, slot.api_version, request.body),
        "response": None
        if response is None
        else as_json("response", slot.api_key, slot.api_version, response),
        "connection": session.connection_id,
        "securityProtocol": session.security_protocol.name,
        "principal": session.principal,
        "listener": listener,
        "clientInformation": {
            "softwareName": session.client_software_name,
            "softwareVersion": session.client_software_version,
        },
    }
    if request.temporary_bytes:
        known["temporaryMemoryBytes"] = request.temporary_bytes
    if request.conversion_ns:
        known["messageConversionsTime"] = round(request.conversion_ns / 1e6, 3)
    return msgspec.json.encode(known)[:-1]


def as_json(kind: Kind, key: int, version: int, message: Message) -> dict[str, Any]:
    """Return a message's fields in this version as a dict, under Kafka's names."""
    schema = message_for(kind, key)
    assert schema is not None, f"no API has key {key}"
    return _struct(schema, message, version, key)


def _struct(schema: StructType, message: Any, version: int, key: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in schema.fields:
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if field.type == "records":
            found["recordsSizeInBytes"] = 0 if value is None else len(value)
        elif value is not None and _is_secret(field, key):
            found[_camel(field.name)] = HIDDEN
        elif field.is_array and value is not None:
            found[_camel(field.name)] = [_value(field, one, version, key) for one in value]
        else:
            found[_camel(field.name)] = _value(field, value, version, key)
    return found


def _is_secret(field: Field, key: int) -> bool:
    return field.name in SECRETS or (field.name == "value" and key in ALTERS_CONFIGS)


def _value(field: Field, value: Any, version: int, key: int) -> Any:
    if value is None:
        return None
    if field.struct is not None:
        return _struct(field.struct, value, version, key)
    if field.type == "uuid":
        return uuid_text(value)
    if field.type == "bytes":
        return base64.b64encode(value).decode()
    return value


@cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
