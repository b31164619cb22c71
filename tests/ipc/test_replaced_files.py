"""Files that are replaced as a whole, and what follows them: nodes, mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc import replaced_files
from mpbroker.ipc.mirror import MIRROR_FILE, MirrorPointer, followed_mirror, write_mirror
from mpbroker.ipc.nodes import NODES_FILE, Node, Nodes, followed_nodes, write_nodes
from mpbroker.ipc.replaced_files import read_json

NODES = Nodes(1, 3, [Node(1, "", {"PLAINTEXT": ("a.example", 9092)}), Node(2, "r2", {"TLS": ("b", 9093)})])


def test_nodes_and_mirror_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert read_json(tmp_path / NODES_FILE, Nodes) is None
    mirror = MirrorPointer(4, ["/a", "/b"])
    write_nodes(tmp_path, NODES)
    write_mirror(tmp_path, mirror)
    assert read_json(tmp_path / NODES_FILE, Nodes) == NODES
    assert read_json(tmp_path / MIRROR_FILE, MirrorPointer) == mirror


def test_a_followed_file_is_read_again_after_each_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_files, "POLL_S", 0.0)
    followed = followed_mirror(tmp_path)
    assert not followed.poll()
    for version in (1, 2):
        write_mirror(tmp_path, MirrorPointer(version, []))
        assert followed.poll()
        assert followed.content == MirrorPointer(version, [])
        assert not followed.poll()
    write_mirror(tmp_path, MirrorPointer(2, []))
    assert not followed.poll(), "the same content is no news"
    followed.path.unlink()
    assert followed.poll()
    assert followed.content is None


def test_a_damaged_file_leaves_in_force_what_it_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replaced_files, "POLL_S", 0.0)
    write_nodes(tmp_path, NODES)
    followed = followed_nodes(tmp_path)
    assert followed.poll()
    (tmp_path / NODES_FILE).write_text("{")
    assert not followed.poll()
    assert followed.content == NODES
    assert str(tmp_path / NODES_FILE) in caplog.text


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / NODES_FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        write_nodes(tmp_path, NODES)
    assert [path.name for path in tmp_path.iterdir()] == [NODES_FILE]
