"""The same as for tests of the log: most of what is read here, a partition's log has written."""

from __future__ import annotations

from tests.log import conftest as of_the_log

writer, rig, node, journaled = of_the_log.writer, of_the_log.rig, of_the_log.node, of_the_log.journaled
_files_closed = of_the_log._files_closed
