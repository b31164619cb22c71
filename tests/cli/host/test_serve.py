"""`mpbroker serve` up to the moment the supervisor takes over: flags, settings, refusals."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from mpbroker.cli.errors import CliError, explaining_openssl
from mpbroker.cli.host import serve
from mpbroker.cli.main import app, run
from mpbroker.cli.serve_flags import ServeFlags, parsed
from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.mirror import MirrorPointer, write_mirror
from mpbroker.supervisor import logs
from mpbroker.supervisor.config_diff import ReadAgain
from mpbroker.supervisor.logs import LogFormat
from tests.cli.conftest import Typed
from tests.support.programs import ran


def test_flags_beat_overrides_beat_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.io.threads=3\nnum.partitions=2\nlog.dirs=/a\n")
    flags = {
        "--handlers": "5",
        "--log-dirs": "/b,/c",
        "--listeners": "PLAINTEXT://[::1]:0",
        "--processors": None,
    }
    config = serve.read_config(path, ["num.partitions=4"], flags).config
    assert (config.num_io_threads, config.num_partitions, config.log_dirs) == (5, 4, ("/b", "/c"))
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:0"


def test_a_broker_that_follows_has_the_settings_of_a_standby_on_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    remote = (
        "remote.log.storage.system.enable=true\nmpbroker.remote.url=file:///s\nmpbroker.remote.acks=ledger\n"
    )
    path.write_text(f"{remote}log.dirs=/a,/b\n")
    with pytest.raises(CliError, match=r"--follow: .* has no mpbroker\.mirror: mpbroker serve"):
        serve.serve(path, [], {}, check_only=True, follow=tmp_path)
    write_mirror(tmp_path, MirrorPointer(1, ["/a"]))
    seen: list[BrokerConfig] = []
    monkeypatch.setattr(serve, "secure_listeners", seen.append)
    assert serve.serve(path, [], {"--log-dirs": "/c"}, check_only=True, follow=tmp_path) == 0
    (config,) = seen
    assert config.log_dirs == (str(tmp_path),)
    assert not config.remote_log_storage_system_enable
    assert not config.log_cleaner_enable
    assert "warning" not in capsys.readouterr().err


@pytest.mark.process
def test_flags_are_taken_without_what_takes_long_to_import(tmp_path: Path) -> None:
    """All processes of a broker would keep such modules in memory."""
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\n")
    code = f"""
import sys
from mpbroker.cli.entry import main
sys.argv[1:] = ["serve", "--check-config", "--config", {str(path)!r}, "--log-dirs", {str(tmp_path)!r},
                "-o", "num.io.threads=3", "-o", "log.retention.ms=7"]
try:
    main()
except SystemExit as ended:
    print(ended.code, *sorted({{"pydantic", "email", "rich", "typer"}} & sys.modules.keys()))
"""
    done = ran([sys.executable, "-c", code], check=True)
    assert (done.stdout, done.stderr) == ("0\n", "mpbroker: the configuration is valid\n")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--check-config", "-c", "a", "--config=b"],
        ["-o", "a=1", "-o", "b=--2", "--http=", "--http", "127.0.0.1:9644", "--log-format", "json"],
        ["--listeners", "PLAINTEXT://:9092", "--log-dirs=/a=b,/c", "--processors", "1", "--handlers=2"],
        ["--log-workers", "x"],
        ["--follow", "/a", "-o", "a=1"],
        ["--standby", "--config", "a"],
        ["--standby", "--read-only"],
    ],
)
def test_typer_and_serve_itself_read_the_same_flags(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    seen: list[ServeFlags] = []

    def served(config_file: Any, overrides: Any, flags: Any, **named: Any) -> int:
        seen.append(ServeFlags(config_file, overrides, flags, **named))
        return 0

    monkeypatch.setattr(serve, "serve", served)
    assert run(["serve", *words]) == 0
    assert seen == [parsed(["serve", *words])]


def test_the_words_of_a_face_are_those_of_its_standby() -> None:
    words = [
        "serve",
        "--config=/a",
        "--log-dirs=/b",
        "-o",
        "node.id=2",
        "-o",
        "x=--y",
        "--log-format",
        "json",
    ]
    given = parsed(words)
    assert given is not None
    made = serve._words(given.config_file, given.overrides, given.flags, given.log_format)
    assert parsed(made) == given


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["top"],
        ["--version"],
        *(
            ["serve", *given]
            for given in (["-h"], ["--", "x"], ["--handlers"], ["-cx"], ["--check-config=1"])
        ),
        *(["serve", *given] for given in (["x"], ["--handler", "1"], ["--handlers", "-1"], ["-o", "--http"])),
    ],
)
def test_typer_reads_what_is_to_be_explained(words: list[str]) -> None:
    assert parsed(words) is None


def test_serve_itself_reads_every_flag() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for flag in group.commands["serve"].params:
        for name in flag.opts:
            assert parsed(["serve", name, *([] if getattr(flag, "is_flag", False) else ["x"])]), name


@pytest.mark.process
def test_help_is_printed_without_what_single_commands_need() -> None:
    """What all commands import is paid for by each call."""
    code = """
import sys
from mpbroker.cli.main import run
code = run(["--help"])
libraries = {"asyncio", "cramjam", "logging", "msgspec", "psutil", "rich", "socket", "ssl"}
rooms = {"ipc", "log", "protocol", "records", "supervisor"}
folders = {"cli.cluster", "cli.doctor", "cli.host", "cli.records", "cli.spark", "cli.top"}
folders |= {"client.cluster", "client.config", "client.errors"}
others = {"shm", "mpbroker.config.broker"}
imported = libraries | others | {f"mpbroker.{one}" for one in rooms | folders}
print(code, *sorted(imported & sys.modules.keys()), file=sys.stderr)
"""
    done = ran([sys.executable, "-c", code], check=True)
    assert "Usage: " in done.stdout
    assert done.stderr == "0\n"


@pytest.mark.parametrize("check", [["--check-config"], []])
def test_a_level_of_the_log_that_there_is_not(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, check: list[str]
) -> None:
    monkeypatch.setenv("MPBROKER_LOG_LEVEL", "LOUD")
    code, _out, err = typed("serve", *check)
    assert (code, err) == (
        2,
        "mpbroker: MPBROKER_LOG_LEVEL=LOUD: the level is one of DEBUG, INFO, WARNING, ERROR\n",
    )
    assert logs.wanted_level({"MPBROKER_LOG_LEVEL": "debug"}) == "DEBUG"
    assert logs.wanted_level({}) == "INFO"


def test_check_config(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.threads=2\n")
    code, _out, err = typed("serve", "--config", str(path), "--check-config")
    has_none = f"{path}:1: log.cleaner.threads has no effect: one process compacts all topics"
    assert (code, err) == (
        0,
        f"mpbroker: warning: {has_none}\nmpbroker: the configuration is valid\n",
    )


def test_check_config_of_a_keystore_that_cannot_be_used(typed: Typed, tmp_path: Path) -> None:
    keystore = tmp_path / "broker.pem"
    keystore.write_text("no certificate")
    settings = ["--listeners", "SSL://:9093", "-o", f"ssl.keystore.location={keystore}"]
    code, _out, err = typed("serve", *settings, "--check-config")
    assert (code, str(keystore) in err, len(err.splitlines())) == (2, True, 1), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--handlers", "none"], "--handlers: Invalid value none for configuration num.io.threads"),
        (["--processors", "0"], "--processors: Invalid value 0 for configuration num.network.threads"),
        (["--listeners", "localhost"], "--listeners: 'localhost' is not a listener"),
        (["-o", "log.workers=8"], "-o: Invalid value 8 for configuration log.workers"),
        (["-o", "num.partitons=4"], "-o: unknown setting num.partitons; did you mean num.partitions?"),
        (["--config", "/no/such/file"], "/no/such/file: cannot be read: No such file or directory"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(
    typed: Typed, arguments: list[str], message: str
) -> None:
    code, _out, err = typed("serve", *arguments)
    assert code == 2
    assert err.startswith(f"mpbroker: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("serve", "--no-such-flag"), ""),
        (("serve", "--port", "1"), "; the port is part of --listeners PLAINTEXT://127.0.0.1:9092"),
        (("consume", "--topic", "t"), "; the topic is the first argument: mpbroker consume TOPIC"),
    ],
)
def test_options_that_there_are_not(typed: Typed, arguments: tuple[str, ...], advice: str) -> None:
    code, _out, err = typed(*arguments)
    assert code == 2
    assert err.endswith(f"No such option: {arguments[1]}{advice}\n")


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(CliError, match="runs on Linux only, this is darwin"):
        serve.serve(None, [], {}, check_only=False)


def test_the_supervisor_gets_the_settings_and_gives_the_exit_code(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[BrokerConfig, ReadAgain | None]] = []

    def run(config: BrokerConfig, read_again: ReadAgain | None, log_format: LogFormat) -> int:
        assert log_format is LogFormat.TEXT
        seen.append((config, read_again))
        return 3

    monkeypatch.setattr("mpbroker.supervisor.main.run", run)
    code, _out, _err = typed("serve", "--handlers", "4")
    config, read_again = seen[0]
    assert (code, config.num_io_threads, read_again) == (3, 4, None)
    file = tmp_path / "server.properties"
    file.write_text("num.io.threads=2\nmax.connections=5\n")
    typed("serve", "--handlers", "4", "--config", str(file))
    file.write_text("num.io.threads=2\nmax.connections=6\n")
    config, read_again = seen[1]
    assert read_again is not None
    again = read_again().config
    assert (config.max_connections, again.max_connections, again.num_io_threads) == (5, 6, 4)


def test_every_command_explains_itself(typed: Typed) -> None:
    code, out, _err = typed("--help")
    assert code == 0
    assert all(command in out for command in ("serve", "topic", "produce", "consume", "ctl"))
    assert typed("--version")[1].startswith("mpbroker")
    assert app.info.name == "mpbroker"


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["ctl", "--log-dirs", "A", "resize", "--handlers", "1"], "A"),
        (["ctl", "--log-dirs", "A", "listener", "list"], "A"),
        (["ctl", "--log-dirs", "A", "status", "--log-dirs", "B"], "B"),
        (["ctl", "status", "--log-dirs", "B"], "B"),
    ],
)
def test_log_dirs_may_stand_behind_ctl(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], asked: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / asked).mkdir()
    code, _out, err = typed(*arguments)
    assert code == 1
    assert err.startswith(f"mpbroker: no broker is running on {tmp_path / asked} ")


def commands(group: TyperGroup, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


def test_every_command_has_a_form_for_programs() -> None:
    """Check all commands but those that print one text anyway, and those that run something."""

    def without(group: TyperGroup, *path: str) -> Iterator[str]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from without(command, *path, name)
            elif not any("--json" in parameter.opts for parameter in command.params):
                yield " ".join((*path, name))

    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert set(without(root)) == {"serve", "run", "completion", "man", "config sample"}


def test_help_fits_a_terminal_and_is_not_about_python(monkeypatch: pytest.MonkeyPatch) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    # It is made once, not for each help.
    monkeypatch.setattr("typer.testing._get_command", lambda _: group)
    for path in commands(group):
        # Two columns of 80 stay free outside of tests.
        for width in (78, 118):
            text = CliRunner().invoke(app, [*path, "--help"], terminal_width=width).output
            assert re.findall(r"<\w+|\[\[|…\]?\}|[{}]", text) == [], path
            commands_of_it = text.partition("Commands:")[2]
            assert [line for line in commands_of_it.splitlines() if line.endswith("...")] == [], path
            assert max(map(len, text.splitlines())) <= width + 2, path


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["produce"], "produce [OPTIONS] TOPIC"),
        (["topic", "delete"], "topic delete [OPTIONS] TOPIC..."),
        (["quota", "set"], "quota set [OPTIONS] QUOTA=NUMBER..."),
        (["ctl", "listener", "add"], "ctl listener add [OPTIONS] NAME://HOST:PORT"),
    ],
)
def test_what_is_missing_is_shown_as_it_is_typed(typed: Typed, arguments: list[str], usage: str) -> None:
    code, _out, err = typed(*arguments)
    assert code == 2
    assert err.splitlines()[0] == f"Usage: mpbroker {usage}"


def test_a_host_without_openssl_is_told_what_to_install() -> None:
    """A wheel takes the library of its host."""
    missing = "libssl.so.3: cannot open shared object file: No such file or directory"
    with (
        pytest.raises(CliError, match=r"lacks: libssl\.so\.3: cannot .* apt-get install libssl3"),
        explaining_openssl(),
    ):
        raise ImportError(missing)
    with pytest.raises(ModuleNotFoundError, match="No module named 'x'"), explaining_openssl():
        raise ModuleNotFoundError("No module named 'x'")
