"""`mpbroker export` and `mpbroker import`: hand log directories over to Kafka, or take over Kafka's.

`mpbroker remote export` and `mpbroker remote import` do the same with directories and their object store.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from mpbroker.cli.errors import USAGE_ERROR, CliError, file_error
from mpbroker.cli.flags import DryRun, Json, flag, option
from mpbroker.cli.text.output import counted, print_json
from mpbroker.config.listeners import parse_host_port
from mpbroker.config.remote import REMOTE_URL, SYSTEM_ENABLE
from mpbroker.ipc.process import FatalError
from mpbroker.migration import from_kafka, to_kafka
from mpbroker.migration.bucket_export import Bucket
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.moved import Moved
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.store.self_test import StoreUnfit

LogDirectories = Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True, readable=False)]
Controller = Annotated[str, option("--controller", "HOST:PORT", "Where Kafka's controller is to listen.")]
SetAsideStrays = Annotated[
    bool, flag("--set-aside-strays", "Accept partitions of unknown topics; a start sets them aside.")
]
StoreUrl = Annotated[str, option("--url", "URL", "The object store, as mpbroker.remote.url.")]
CONTROLLER: Final = "localhost:9093"
_REQUEST_TIMEOUT_MS: Final = 60_000


def export(
    paths: LogDirectories, controller: Controller = CONTROLLER, dry_run: DryRun = False, json: Json = False
) -> None:
    """Turn a broker's directories into Apache Kafka's.

    Stop the broker first. Name all of log.dirs. The broker can still use them until Kafka has been started.
    """
    _export(paths, controller, is_dry=dry_run, as_json=json)


def remote_export(
    paths: LogDirectories,
    url: StoreUrl,
    controller: Controller = CONTROLLER,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Turn a broker's log directories and bucket into Apache Kafka's.

    Kafka needs Aiven's plug-in for tiered storage. Stop the broker first. Name
    all of log.dirs. From then on only `mpbroker remote import` brings them back.
    """
    _export(paths, controller, is_dry=dry_run, as_json=json, url=url)


def _export(
    paths: list[Path], controller: str, *, is_dry: bool, as_json: bool, url: str | None = None
) -> None:
    where = _controller(controller)
    with _refusals(paths, url):
        done = to_kafka.export(paths, where, is_dry=is_dry, bucket=_opened(url))
    if as_json:
        print_json({"dry_run": is_dry, **_members(done)})
        return
    _print_counts(done, "would be exported" if is_dry else "exported")
    _print_lines("would be written:" if is_dry else "written:", done.files)
    _print_lines("note:", done.notes)
    _print_lines("settings of Apache Kafka's server.properties:", done.settings)
    if not is_dry:
        sys.stdout.write("Start Kafka with them: kafka-server-start.sh server.properties\n")
    if url is not None:
        back = shlex.join(["mpbroker", "remote", "import", "--url", url, *map(str, paths)])
        sys.stdout.write(
            f"The ledger {'would be' if is_dry else 'is'} closed: the broker writes nothing to the object "
            f"store, even if no Kafka was started, until it is taken back with\n  {back}\n"
        )
    _print_dry(is_dry=is_dry)


def _controller(text: str) -> tuple[str, int]:
    try:
        host, port = parse_host_port(text)
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise CliError(f"--controller {text}: write HOST:PORT", USAGE_ERROR)
    return host, port


def import_(
    paths: LogDirectories,
    dry_run: DryRun = False,
    set_aside_strays: SetAsideStrays = False,
    json: Json = False,
) -> None:
    """Take over the directories of a stopped Apache Kafka 4 node.

    Name all of log.dirs, and metadata.log.dir.
    """
    _import(paths, is_dry=dry_run, sets_strays_aside=set_aside_strays, as_json=json)


def remote_import(
    paths: LogDirectories,
    url: StoreUrl,
    dry_run: DryRun = False,
    set_aside_strays: SetAsideStrays = False,
    json: Json = False,
) -> None:
    """Take over log directories and bucket of a stopped Apache Kafka.

    The bucket is one that Aiven's plug-in writes, for a node of Kafka 4. Name all of log.dirs, in
    its order, and metadata.log.dir. No object is copied.
    """
    _import(paths, is_dry=dry_run, sets_strays_aside=set_aside_strays, as_json=json, url=url)


def _import(
    paths: list[Path], *, is_dry: bool, sets_strays_aside: bool, as_json: bool, url: str | None = None
) -> None:
    with _refusals(paths, url):
        done = from_kafka.import_(
            paths, is_dry=is_dry, sets_strays_aside=sets_strays_aside, bucket=_opened(url)
        )
    if as_json:
        print_json({"dry_run": is_dry, **_members(done)})
        return
    _print_counts(done, "would be imported" if is_dry else "imported")
    _print_lines("not taken over:", done.left)
    if not is_dry:
        if done.kept:
            sys.stdout.write(f"Kafka's metadata are kept in {done.kept}\n")
        options = [f"node.id={done.node_id}"]
        if url is not None:
            options += [f"{SYSTEM_ENABLE}=true", f"{REMOTE_URL}={url}"]
        command = ["mpbroker", "serve", "--log-dirs", ",".join(done.log_dirs)]
        command += [word for one in options for word in ("-o", one)]
        sys.stdout.write(f"Start mpbroker with Kafka's server.properties (-c), or: {shlex.join(command)}\n")
        if url is not None:
            sys.stdout.write(
                f"server.properties needs {REMOTE_URL}={url}, and must not name classes of a plug-in\n"
            )
    _print_dry(is_dry=is_dry)


def _opened(url: str | None) -> Bucket | None:
    return None if url is None else Bucket(url, open_store(url, _REQUEST_TIMEOUT_MS, "--url"))


@contextmanager
def _refusals(paths: list[Path], url: str | None) -> Iterator[None]:
    try:
        yield
    except (CannotMove, FatalError) as error:
        # The ledger may have an entry more, which does no harm.
        kept = "Nothing was changed" if url is None else "Directories and object store stay whose they were"
        raise CliError(f"{error}. {kept}") from error
    except StoreRefused as error:
        raise CliError(str(error), USAGE_ERROR) from error
    except StoreUnfit as error:
        raise CliError(f"{url}: {error}") from error
    except StoreError as error:
        raise CliError(f"{url}: {error}. Run the same command again when the object store answers") from error
    except OSError as error:
        raise file_error(error, paths[0]) from error


def _members(done: Moved) -> dict[str, object]:
    return {name: getattr(done, name) for name in done.__struct_fields__}


def _print_counts(done: Moved, what: str) -> None:
    parts = [
        counted(done.topics, "topic") + f" with {counted(done.partitions, 'partition')}",
        counted(done.users, "SCRAM user"),
        counted(done.acls, "ACL"),
        counted(done.quotas, "quota"),
        counted(done.tokens, "delegation token"),
        *([counted(done.segments, "segment") + " in the object store"] if done.segments else []),
    ]
    sys.stdout.write(f"cluster {done.cluster_id}, node {done.node_id}\n{what}: {', '.join(parts)}\n")


def _print_lines(title: str, lines: list[str]) -> None:
    if lines:
        sys.stdout.write(f"{title}\n")
        sys.stdout.writelines(f"  {line}\n" for line in lines)


def _print_dry(*, is_dry: bool) -> None:
    if is_dry:
        sys.stdout.write("Nothing was changed.\n")
