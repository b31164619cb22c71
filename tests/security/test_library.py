"""The broker says which OpenSSL encrypts, and that a newer one is faster only where it is."""

from __future__ import annotations

import ssl

import pytest

from mpbroker.security import library, openssl
from mpbroker.security.library import VECTOR_AES_FLAGS, describe
from tests.support.polling import until
from tests.support.secure_broker import SecureBroker

OLDER, NEWER = ("OpenSSL 3.0.19 27 Jan 2026", (3, 0)), ("OpenSSL 3.5.7 9 Jun 2026", (3, 5))
AVX512 = f"processor\t: 0\nflags\t\t: fpu aes {' '.join(sorted(VECTOR_AES_FLAGS))}\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    "cpu_info",
    [
        *(AVX512.replace(f" {flag}", "") for flag in sorted(VECTOR_AES_FLAGS)),
        "processor\t: 0\nFeatures\t: fp asimd aes pmull\n",
    ],
)
def test_another_processor_gains_nothing(cpu_info: str) -> None:
    assert describe(*OLDER, cpu_info) == "TLS by OpenSSL 3.0.19 27 Jan 2026"


@pytest.mark.parametrize(
    ("openssl", "advised"),
    [
        (OLDER, True),
        (("OpenSSL 1.1.1w  11 Sep 2023", (1, 1)), True),
        (("OpenSSL 3.1.0 14 Mar 2023", (3, 1)), False),
        (NEWER, False),
        (("OpenSSL 4.0.0 14 Apr 2026", (4, 0)), False),
    ],
)
def test_a_processor_with_avx512_is_advised(openssl: tuple[str, tuple[int, int]], advised: bool) -> None:
    told = describe(*openssl, AVX512)
    assert told.startswith(f"TLS by {openssl[0]}")
    assert ("mpbroker docs security" in told) is advised


def test_it_is_the_one_that_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of Python's ssl module, which may have one of its own."""
    told = library.description()
    monkeypatch.setattr(ssl, "OPENSSL_VERSION", "OpenSSL 9.9.9 of Python's own")
    monkeypatch.setattr(ssl, "OPENSSL_VERSION_INFO", (9, 9, 0, 9, 0))
    assert library.description() == told


def test_the_log_says_it_once(broker: SecureBroker) -> None:
    until(lambda: library.description() in broker.output(), "the log says it")
    output = broker.output()
    assert output.count(library.description()) == output.count(f"TLS by {openssl.VERSION}") == 1
