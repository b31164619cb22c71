"""Kafka's APIs, one module each. ApiVersions lists the versions that are registered here, and no others.

A module `kNN_name.py` registers its function with `@api(key, oldest, latest, …)`. The function gets a
RequestContext. It returns the response, or None if it has ended the request itself or will do so later. A
function that may work for long returns a generator: other requests are served whenever the generator yields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import PARTITIONS_MAX
from mpbroker.handlers.requests.request import Api, Outcome, not_refused
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import RESPONSES, Message

Handle: TypeAlias = Callable[[RequestContext], Outcome]
Refusal: TypeAlias = Callable[[RequestContext], Message | None]
Failed: TypeAlias = Callable[[RequestContext, ErrorCode], Message | None]


_registered: dict[int, Api] = {}
# Kafka serves these only with a receiver of client metrics. A client that sees them uses them.
_OF_TELEMETRY = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)


def api(
    key: ApiKey,
    oldest: int,
    latest: int,
    *,
    name: str,
    failed: Failed | None = None,
    advertised_from: int | None = None,
    is_forwarded: bool = False,
    elements_max: int = PARTITIONS_MAX,
    refusal: Refusal = not_refused,
) -> Callable[[Handle], Handle]:
    """Register a function for versions of an API.

    `failed` builds the response to a request that failed as a whole. It may be None if the response has an
    `error_code` for the whole request.
    """

    def register(handle: Handle) -> Handle:
        if key in _registered:
            raise ValueError(f"{name} and {_registered[key].name} both claim API key {key}")
        first = oldest if advertised_from is None else advertised_from
        summary = " ".join((handle.__doc__ or "").split("\n\n")[0].split())
        whole = failed or _one_error(key)
        _registered[key] = Api(
            key, name, oldest, latest, first, summary, handle, whole, is_forwarded, elements_max, refusal
        )
        return handle

    return register


def _one_error(key: ApiKey) -> Failed:
    response: Any = RESPONSES[key]
    if "error_code" not in response.__struct_fields__:
        raise TypeError(f"{response.__name__} has no error code for all of it: its API needs a `failed`")
    return lambda _context, code: response(error_code=code)


def all_apis() -> dict[int, Api]:
    """Return every API by key. The first call imports the modules of the APIs."""
    _import_all()
    return dict(sorted(_registered.items()))


@cache
def _import_all() -> None:
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


def apis_of(config: BrokerConfig) -> dict[int, Api]:
    """Return the APIs that a broker with this configuration serves, by key."""
    left_out = () if config.client_telemetry_enable else _OF_TELEMETRY
    return {key: api for key, api in all_apis().items() if key not in left_out}


def served(config: BrokerConfig) -> tuple[Served, ...]:
    """Return the APIs that ApiVersions lists."""
    return tuple(Served(a.key, a.advertised_from, a.latest) for a in apis_of(config).values())
