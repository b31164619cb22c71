"""The pip command that installs an optional package, for errors about a missing package."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of mpbroker-server with the pip of this environment.

    The pip on the PATH may belong to another environment or to the system.
    """
    own = Path(sys.executable).with_name("pip")
    found = shutil.which("pip")
    if not own.exists():
        pip = f"{shlex.quote(sys.executable)} -m pip"
    elif found is not None and Path(found) == own:
        pip = "pip"
    else:
        pip = shlex.quote(str(own))
    return f"{pip} install 'mpbroker-server[{extra}]'"
