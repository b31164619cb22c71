"""Sets the error message that goes with an error code, in every struct of a response."""

from __future__ import annotations

from typing import Any

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message


def explain(response: Message, code: ErrorCode, message: str) -> None:
    """Set `error_message` in each struct of the response that has this field and the error code `code`."""
    structs: list[Any] = [response]
    while structs:
        struct = structs.pop()
        names = struct.__struct_fields__
        if "error_message" in names and getattr(struct, "error_code", None) == code:
            struct.error_message = message
        for name in names:
            value = getattr(struct, name)
            if isinstance(value, Message):
                structs.append(value)
            elif isinstance(value, list):
                structs += [one for one in value if isinstance(one, Message)]
