"""Makes a server.properties with each setting that has an effect, by group, with default and description.

The descriptions are the fields `Key.doc` of the settings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from mpbroker.config.broker import BROKER_KEYS
from mpbroker.config.keys import ConfigType, Key, field_name, format_value
from mpbroker.config.remote import RemoteSettings
from mpbroker.config.version import VERSION
from mpbroker.config.workers import RESIZABLE

WIDTH = 100
_NUMBERS = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
_HEAD = f"""\
# Settings of mpbroker {VERSION} with their defaults, commented out. To change one, remove the #
# before its name. A line `# name=` has no default. Names are Kafka's, where Kafka has the setting.
#
# mpbroker serve --config FILE --check-config checks this file, mpbroker ctl reload makes a running
# broker read it again; see mpbroker docs operating. Settings of TLS and SASL can be given for
# a single listener, too, such as listener.name.<name>.ssl.client.auth=required.
"""


def groups() -> list[tuple[str, list[Key]]]:
    """Return (title, settings) of each group. Those that BrokerConfig inherits come last."""
    found: list[tuple[str, list[Key]]] = []
    for key in BROKER_KEYS.values():
        if key.begins:
            found.append((key.begins, []))
        found[-1][1].append(key)
    inherited = {*RemoteSettings.__struct_fields__}
    return sorted(found, key=lambda group: field_name(group[1][0].name) in inherited)


def sample(values: Mapping[str, str] | None = None) -> str:
    """Return the text of the file. It sets the `values`, by key; all other settings are commented out."""
    parts = [_HEAD]
    for title, keys in groups():
        parts.append(f"\n## {title}\n")
        parts += (_entry(key, (values or {}).get(key.name)) for key in keys if not key.pending)
    return "".join(parts)


def _entry(key: Key, value: str | None) -> str:
    """Return a setting's description and its line. A setting without a default is written `# name=`."""
    default = format_value(key.default)
    if value is None and default is None:
        line = f"# {key.name}="
    else:
        line = f"#{key.name}={default}" if value is None else f"{key.name}={value}"
    remark = textwrap.fill(" ".join(_remarks(key)), WIDTH, initial_indent="# ", subsequent_indent="# ")
    return f"\n{remark}\n{line}\n"


def _remarks(key: Key) -> Iterator[str]:
    yield key.doc
    if key.choices:
        yield f"{'Of these' if key.type is ConfigType.LIST else 'One of'}: {', '.join(key.choices)}."
    if key.type in _NUMBERS and key.at_most is not None:
        yield f"From {key.at_least} to {key.at_most}."
    if key.name in RESIZABLE:
        yield "The default depends on the CPUs: this is the one for the host that wrote the file."
