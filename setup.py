"""Finds every Cython module below the packages; all else stands in pyproject.toml.

MPBROKER_NATIVE=0 leaves them out: `make setup` installs the sources in place and then compiles them in
place, once, instead of once in a temporary directory and once more after the first change.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
PACKAGES = ("shm", "mpbroker")
# Not of what Cython itself writes.
WARNINGS = ("-Wall", "-Wno-unused-function", "-Wno-enum-compare", "-Wno-sign-compare")


def extensions() -> list[Extension]:
    found: list[Extension] = []
    if os.environ.get("MPBROKER_NATIVE") == "0":
        return found
    headers = sorted(str(h.relative_to(ROOT)) for package in PACKAGES for h in (ROOT / package).rglob("*.h"))
    for package in PACKAGES:
        for source in sorted((ROOT / package).rglob("*.pyx")):
            path = source.relative_to(ROOT)
            found.append(
                Extension(
                    ".".join(path.with_suffix("").parts),
                    [str(path)],
                    include_dirs=[str(ROOT)],
                    depends=headers,
                    # Descriptors are filled as one struct and copied as another: they may be the same bytes.
                    extra_compile_args=["-O2", "-fno-strict-aliasing", *WARNINGS],
                )
            )
    return found


setup(
    ext_modules=cythonize(
        extensions(),
        nthreads=2,
        quiet=True,
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
            "show_performance_hints": False,
        },
    )
)
