"""JVMs with the archive of Kafka's classes, and with a file that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.class_archive import ARCHIVE, FLAGS
from tests.support.client_tools import java_command, run

pytestmark = pytest.mark.clients

TOOL = "org.apache.kafka.tools.DumpLogSegments"


def test_a_class_comes_from_the_archive() -> None:
    command = java_command(TOOL, "--version")
    assert set(FLAGS) <= set(command)
    java, *rest = [word for word in command if word != "-Xlog:disable"]
    printed = run([java, "-Xlog:class+load", *rest]).decode()
    assert "org.apache.kafka.common.utils.AppInfoParser source: shared objects file (top)" in printed


def test_a_file_that_is_no_archive_is_passed_over(tmp_path: Path) -> None:
    """Check that the JVM prints nothing of it: what tools print is read."""
    (tmp_path / "bad").write_bytes(b"no archive" * 1000)
    command = java_command(TOOL, "--version")
    expected = run(command)
    assert expected
    changed = [word.replace(str(ARCHIVE), str(tmp_path / "bad")) for word in command]
    assert changed != command
    assert run(changed) == expected
