"""Unit tests on native modules that are built with GCC's address and undefined behaviour sanitizers.

    python -m ops.setup.sanitizers [arguments of pytest]

The build is below `build/asan`, with a copy of the packages; the checkout's packages stay unchanged. Leaks
are not reported: Python itself keeps memory until its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "asan"
PACKAGES = ("shm", "mpbroker")
SANITIZE = "-fsanitize=address,undefined"
FLAGS = f"{SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1"
# The sanitizer would not know the bounds of objects in memory of Python's own allocator.
SETTINGS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONMALLOC": "malloc"}
# Tests left out. With the sanitizer, modules are slower and need more memory; and its allocator ends the
# process when memory is exhausted.
MEASURED = (
    "test_two_million_rows_a_second_at_the_least",
    "test_memory_of_a_batch_is_bounded",
    "test_out_of_memory_ends_the_process_instead_of_an_answer",
)


class SanitizerError(Exception):
    """The modules cannot be built or loaded; the message is the reason."""


def build() -> Path:
    """Compile changed modules. Return the directory to import from. Raises SanitizerError."""
    command = [sys.executable, "setup.py", "--quiet", "build", "--parallel", str(os.cpu_count() or 1)]
    places = ["--build-lib", str(PLACE / "lib"), "--build-temp", str(PLACE / "temp")]
    flags = {"CFLAGS": FLAGS, "LDFLAGS": SANITIZE}
    if subprocess.run([*command, *places], cwd=ROOT, env={**os.environ, **flags}, check=False).returncode:
        raise SanitizerError("the native modules cannot be compiled with the sanitizers: see above")
    return PLACE / "lib"


def runtime() -> str:
    """Return the library that has to be loaded before everything else. Raises SanitizerError."""
    asked = subprocess.run(
        [os.environ.get("CC", "cc"), "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = Path(asked.stdout.strip())
    if not found.is_absolute():
        raise SanitizerError("the compiler has no libasan: install GCC's, apt-get install gcc libgcc-12-dev")
    return str(found)


def folders() -> list[str]:
    parts = {
        path.relative_to(ROOT).parts[0 if package == "shm" else 1]
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.pyx")
    }
    return [f"tests/{part}" for part in sorted(parts) if (ROOT / "tests" / part).is_dir()]


def main() -> None:
    try:
        lib, library = build(), runtime()
    except SanitizerError as error:
        raise SystemExit(f"test-asan: {error}") from None
    environment = {**os.environ, **SETTINGS, "LD_PRELOAD": library}
    chosen = ["-m", "unit and not soak", "-k", " and ".join(f"not {name}" for name in MEASURED)]
    wanted = [*chosen, "-p", "no:xdist", "-o", f"pythonpath={lib} .", *sys.argv[1:]]
    if not any(word.startswith("tests") for word in sys.argv[1:]):
        wanted += folders()
    os.chdir(ROOT)
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *wanted], environment)


if __name__ == "__main__":
    main()
