"""The errno values of temporary file errors. Any other error takes a log directory offline."""

from __future__ import annotations

import errno

from mpbroker.ipc.disk_problems import NO_ROOM as NO_ROOM

# A full disk, or too few descriptors or memory for this process at the moment.
PASSING = NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
