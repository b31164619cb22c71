"""A log line about the OpenSSL in use: its version, and whether a newer version is faster on this CPU."""

from __future__ import annotations

from pathlib import Path

from mpbroker.security import openssl

# OpenSSL 3.1 has AES-GCM for AVX-512, and takes it where the processor has all of these (aes-gcm-avx512.pl).
VECTOR_AES_SINCE = (3, 1)
VECTOR_AES_FLAGS = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"}
CPU_INFO = Path("/proc/cpuinfo")


def describe(name: str, version: tuple[int, int], cpu_info: str) -> str:
    """Return the log line for an OpenSSL; `cpu_info` is the content of /proc/cpuinfo."""
    flags = next((line.split() for line in cpu_info.splitlines() if line.startswith("flags")), [])
    if version >= VECTOR_AES_SINCE or not VECTOR_AES_FLAGS.issubset(flags):
        return f"TLS by {name}"
    return (
        f"TLS by {name}; from {'.'.join(map(str, VECTOR_AES_SINCE))} on it encrypts about twice as fast on "
        "this processor: mpbroker docs security#a-newer-openssl"
    )


def description() -> str:
    """Return the log line for the OpenSSL of this process on this machine."""
    return describe(openssl.VERSION, openssl.VERSION_INFO, CPU_INFO.read_text())
