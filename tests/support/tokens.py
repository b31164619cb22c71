"""Bearer tokens for tests: JSON Web Tokens, and the key set that verifies those that are signed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature


def segment(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int, width: int = 0) -> str:
    return segment(value.to_bytes(width or (value.bit_length() + 7) // 8))


def signed(
    algorithm: str,
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    claims: Mapping[str, object],
    header: Mapping[str, object] | None = None,
) -> str:
    """Make a token with SHA-256, also with a key or a header that a library refuses to use."""
    text = f"{segment(header or {'alg': algorithm})}.{segment(claims)}"
    if isinstance(key, rsa.RSAPrivateKey):
        raw = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    else:
        r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        width = key.curve.key_size // 8
        raw = r.to_bytes(width) + s.to_bytes(width)
    return f"{text}.{segment(raw)}"


class Signer:
    """An RSA and an EC key, their key set, and tokens signed with them."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        r, e = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        self.set = {
            "keys": [
                {"kty": "RSA", "kid": "r", "n": number(r.n), "e": number(r.e)},
                {"kty": "EC", "kid": "e", "crv": "P-256", "x": number(e.x, 32), "y": number(e.y, 32)},
            ]
        }

    def sign(self, algorithm: str, kid: str, claims: Mapping[str, object]) -> str:
        key = self.rsa if algorithm == "RS256" else self.ec
        return signed(algorithm, key, claims, {"alg": algorithm, "kid": kid})
