"""A broker from each file in dist/, in virtual environments of their own. `make test-dist` runs this.

What they require comes from the registry, also what the sdist needs to be compiled, which takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.ops.test_dist import try_out
from tests.support.distributions import ROOT, run


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_a_broker_starts_from_what_make_dist_has_made(pattern: str, tmp_path: Path) -> None:
    (made,) = (ROOT / "dist").glob(pattern)
    environment = tmp_path / "env"
    run([sys.executable, "-m", "venv", str(environment)], tmp_path)
    run([str(environment / "bin" / "pip"), "install", "--quiet", str(made)], tmp_path)
    try_out(environment, tmp_path / "broker")
