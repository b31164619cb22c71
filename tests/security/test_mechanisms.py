"""PLAIN, SCRAM and OAUTHBEARER as state machines: RFC examples, everything that is refused, and secrecy."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.config.keys import Secret
from mpbroker.security.delegation import credential_of_token
from mpbroker.security.jaas import JaasEntry, JaasError, PlainUsers, parse_jaas
from mpbroker.security.jwks import KeySet, KeySetError, path_of, signed_validator
from mpbroker.security.mechanism import SaslFailed
from mpbroker.security.oauth import (
    ClaimRules,
    InvalidToken,
    OAuthBearerServer,
    Validator,
    unsecured_validator,
)
from mpbroker.security.plain import PlainServer
from mpbroker.security.principals import Principal
from mpbroker.security.scram import (
    ScramClient,
    ScramCredential,
    ScramServer,
    ScramType,
    TokenLogin,
    credential_of,
    salted_password,
)
from tests.support import tokens
from tests.support.tokens import segment, signed

NOW_MS = 1_800_000_000_000
SECRET = 'p=ä;, "x'
NAMES = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20
)


# ---- JAAS


def test_a_jaas_entry() -> None:
    text = 'a.b.PlainLoginModule required user_ann="a \\"b\\" \\\\ =;" user_bob=simple serviceName="kafka" ;'
    entry = parse_jaas(Secret(text))
    assert entry.module == "a.b.PlainLoginModule"
    assert PlainUsers.of(entry).passwords == {"ann": b'a "b" \\ =;', "bob": b"simple"}
    assert "simple" not in repr(entry) + repr(PlainUsers.of(entry)) + repr(Secret(text)) + str(Secret(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with"),
        ("a.B", "must begin with"),
        ("a.B maybe;", "must begin with"),
        ("a.B required", "must end with"),
        ("a.B required x=y", "must end with"),
        ("a.B required x=y; c.D required;", "must end with"),
        ("a.B required user_a=hunter2 user_a=b;", "option user_a comes twice"),
        ("a.B required user_a hunter2;", "option 1 is not key=value"),
        ('a.B required user_a="hunter2;', "character 21"),
    ],
)
def test_what_is_no_jaas_entry(text: str, message: str) -> None:
    with pytest.raises(JaasError, match=message) as raised:
        parse_jaas(Secret(text))
    assert "hunter2" not in str(raised.value)


# ---- PLAIN

USERS = PlainUsers({"ann": SECRET.encode(), "bob": b"b"})


def test_plain() -> None:
    for authorization_id in ("", "ann"):
        server = PlainServer(USERS)
        assert server.step(f"{authorization_id}\0ann\0{SECRET}".encode()) == b""
        assert server.principal == Principal("ann")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b"\0ann\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0eve\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0ann\0", "Authentication failed: password not specified"),
        (
            b"eve\0bob\0b",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"ann\0x", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0ann\0a\0b", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\0b", None),
    ],
)
def test_plain_refuses(token: bytes, shown: str | None) -> None:
    server = PlainServer(USERS)
    with pytest.raises(SaslFailed) as raised:
        server.step(token)
    assert raised.value.shown == shown
    assert not server.complete


# ---- SCRAM


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kind = ScramType.SCRAM_SHA_256
    credential = credential_of(kind, salted_password(kind, "pencil", salt, 4096), salt, 4096)
    server = ScramServer(
        kind, lambda _, user: credential if user == "user" else None, lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.principal == Principal("user")


def credential_for(kind: ScramType, password: str, iterations: int = 4096) -> ScramCredential:
    salt = hashlib.sha256(password.encode()).digest()
    return credential_of(kind, salted_password(kind, password, salt, iterations), salt, iterations)


@given(NAMES, NAMES, st.sampled_from([ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512]))
def test_scram_with_any_name_and_password(user: str, password: str, kind: ScramType) -> None:
    users = {user: credential_for(kind, password)}
    client = ScramClient(kind, user, password)
    server = ScramServer(kind, lambda asked, name: users.get(name) if asked is kind else None)
    client.verify(server.step(client.final(server.step(client.first()))))
    assert server.principal == Principal(user)
    wrong = ScramClient(kind, user, password + "x")
    server = ScramServer(kind, lambda _, name: users.get(name))
    with pytest.raises(SaslFailed, match="invalid client credentials"):
        server.step(wrong.final(server.step(wrong.first())))
    assert not server.complete


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"y,,n=ann,r=x",
        b"p=tls-unique,,n=ann,r=x",
        b"n,,n=eve,r=x",
        b"n,a=eve,n=ann,r=x",
        b"n,,n=ann,r=x,tokenauth=true",
        b"n,,n=weak,r=x",
        b"n,,n=a\xff,r=x",
        b"n,,n=a=zz,r=x",
    ],
)
def test_scram_refuses_at_the_first_message(token: bytes) -> None:
    users = {
        "ann": credential_for(ScramType.SCRAM_SHA_256, SECRET),
        "weak": credential_for(ScramType.SCRAM_SHA_256, SECRET, 1000),
    }
    server = ScramServer(ScramType.SCRAM_SHA_256, lambda _, user: users.get(user))
    with pytest.raises(SaslFailed):
        server.step(token)


MAC = bytes(range(64))
OWNER = Principal("ann")


def token_server(kind: ScramType, expires_ms: int, now_ms: Callable[[], int]) -> ScramServer:
    """Make a server that knows a user and a token of the same name, by other passwords."""
    token = TokenLogin(OWNER, expires_ms, credential_of_token(kind, MAC))
    return ScramServer(
        kind,
        lambda _, user: credential_for(kind, SECRET) if user == "id" else None,
        look_up_token=lambda asked, name: token if (asked, name) == (kind, "id") else None,
        now_ms=now_ms,
    )


@pytest.mark.parametrize("kind", [ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512])
def test_a_login_by_a_token_is_its_owners_and_ends_with_it(kind: ScramType) -> None:
    server = token_server(kind, NOW_MS + 1, lambda: NOW_MS)
    client = ScramClient(kind, "id", base64.b64encode(MAC).decode(), by_token=True)
    client.verify(server.step(client.final(server.step(client.first()))))
    assert (server.principal, server.expires_ms, server.is_by_token) == (OWNER, NOW_MS + 1, True)
    assert server.claimed == "id"


@pytest.mark.parametrize(
    ("name", "password", "by_token", "why"),
    [
        ("id", SECRET, True, "invalid client credentials"),
        ("id", base64.b64encode(MAC).decode(), False, "invalid client credentials"),
        ("other", base64.b64encode(MAC).decode(), True, "no such delegation token"),
    ],
)
def test_tokens_are_no_users_and_users_no_tokens(name: str, password: str, by_token: bool, why: str) -> None:
    kind = ScramType.SCRAM_SHA_256
    server = token_server(kind, NOW_MS + 1, lambda: NOW_MS)
    client = ScramClient(kind, name, password, by_token=by_token)
    with pytest.raises(SaslFailed, match=why):
        server.step(client.final(server.step(client.first())))
    assert not server.complete


@pytest.mark.parametrize(
    ("extensions", "is_by_token"),
    [(",tokenauth=true", True), (",tokenauth=TRUE", True), (",tokenauth=false", False), (",x=y", False)],
)
def test_the_extension_that_says_token(extensions: str, is_by_token: bool) -> None:
    server = token_server(ScramType.SCRAM_SHA_256, NOW_MS + 1, lambda: NOW_MS)
    server.step(f"n,,n=id,r=x{extensions}".encode())
    assert server.is_by_token is is_by_token


def test_a_token_that_is_removed_during_the_login_logs_nobody_in() -> None:
    kind = ScramType.SCRAM_SHA_256
    found: list[TokenLogin | None] = [TokenLogin(OWNER, NOW_MS + 1, credential_of_token(kind, MAC))]
    server = ScramServer(kind, lambda *_: None, look_up_token=lambda *_: found[0], now_ms=lambda: NOW_MS)
    client = ScramClient(kind, "id", base64.b64encode(MAC).decode(), by_token=True)
    last = client.final(server.step(client.first()))
    found[0] = None
    with pytest.raises(SaslFailed, match="no such delegation token"):
        server.step(last)
    assert server.principal is None


def test_a_token_that_has_expired_logs_nobody_in() -> None:
    now = [NOW_MS]
    kind = ScramType.SCRAM_SHA_512
    client = ScramClient(kind, "id", base64.b64encode(MAC).decode(), by_token=True)
    with pytest.raises(SaslFailed, match="has expired"):
        token_server(kind, NOW_MS, lambda: now[0]).step(client.first())
    # Or it expires between the messages.
    server = token_server(kind, NOW_MS + 1, lambda: now[0])
    final = client.final(server.step(client.first()))
    now[0] += 1
    with pytest.raises(SaslFailed, match="has expired"):
        server.step(final)
    assert not server.complete


def test_a_doubled_nonce_is_refused_and_named() -> None:
    """Librdkafka before 2.6.1 puts its own nonce once more before the whole one."""
    users = {"ann": credential_for(ScramType.SCRAM_SHA_256, SECRET)}
    client = ScramClient(ScramType.SCRAM_SHA_256, "ann", SECRET, "mine")
    server = ScramServer(ScramType.SCRAM_SHA_256, lambda _, user: users.get(user))
    final = client.final(server.step(client.first())).replace(b",r=mine", b",r=minemine")
    with pytest.raises(SaslFailed, match=r"nonce is doubled, as librdkafka before 2\.6\.1 does: update"):
        server.step(final)
    assert not server.complete


@pytest.mark.parametrize("change", [("c=biws", "c=eSws"), (",r=", ",r=x"), (",p=", ",p="), ("", "")])
def test_scram_refuses_a_final_message_of_another_exchange(change: tuple[str, str]) -> None:
    users = {"ann": credential_for(ScramType.SCRAM_SHA_256, SECRET)}
    client = ScramClient(ScramType.SCRAM_SHA_256, "ann", SECRET)
    server = ScramServer(ScramType.SCRAM_SHA_256, lambda _, user: users.get(user))
    final = client.final(server.step(client.first())).decode()
    if change == ("", ""):
        final = final[:-8] + "AAAAAAA="
    elif change[0] == change[1]:
        final = final.partition(",p=")[0]
    with pytest.raises(SaslFailed):
        server.step(final.replace(*change).encode() if change[0] else final.encode())
    assert not server.complete


def test_a_server_that_does_not_know_the_user_is_noticed() -> None:
    client = ScramClient(ScramType.SCRAM_SHA_256, "ann", SECRET, "abc")
    client.final(b"r=abcdef,s=AAAA,i=4096")
    with pytest.raises(SaslFailed, match="could not prove"):
        client.verify(b"v=AAAA")
    with pytest.raises(SaslFailed, match="malformed"):
        client.final(b"r=other,s=AAAA,i=4096")


# ---- OAUTHBEARER


def claims(**changes: object) -> dict[str, object]:
    usual: dict[str, object] = {"sub": "ann", "exp": NOW_MS / 1000 + 60, "scope": "read write"}
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def unsecured(**changes: object) -> str:
    return f"{segment({'alg': 'none'})}.{segment(claims(**changes))}."


def message(token: str, authzid: str = "") -> bytes:
    header = f"n,a={authzid}," if authzid else "n,,"
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()


RULES = ClaimRules(
    required_scope=frozenset({"read"}), audience=frozenset({"kafka"}), issuer="https://i", skew_ms=1000
)
GOOD: dict[str, Any] = {"aud": ["kafka", "other"], "iss": "https://i"}


def test_a_token_is_believed() -> None:
    server = OAuthBearerServer(unsecured_validator(RULES), lambda: NOW_MS)
    assert server.step(message(unsecured(**GOOD, exp=NOW_MS / 1000 - 0.5), "ann")) == b""
    assert server.principal == Principal("ann")
    assert server.expires_ms == NOW_MS - 500


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW_MS / 1000 - 1}, "expired"),
        ({"exp": None}, "no expiry"),
        ({"exp": True}, "is not a time"),
        ({"exp": "tomorrow"}, "is not a time"),
        ({"nbf": NOW_MS / 1000 + 5}, "not valid yet"),
        ({"iat": NOW_MS / 1000 + 5}, "not valid yet"),
        ({"sub": None}, "names no user"),
        ({"sub": 7}, "names no user"),
        ({"sub": ""}, "names no user"),
        ({"sub": "a\0b"}, "zero byte"),
        ({"sub": "a\ud800"}, "not valid Unicode"),
        ({"iss": "https://j"}, "another issuer"),
        ({"aud": "kafk"}, "another audience"),
        ({"scope": "readwrite"}, "scope"),
        ({"scope": None}, "scope"),
    ],
)
def test_a_token_is_refused(changes: dict[str, object], reason: str) -> None:
    server = OAuthBearerServer(unsecured_validator(RULES), lambda: NOW_MS)
    assert json.loads(server.step(message(unsecured(**{**GOOD, **changes})))) == {"status": "invalid_token"}
    assert not server.complete
    with pytest.raises(SaslFailed, match=reason) as raised:
        server.step(b"\x01")
    assert raised.value.shown == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "token",
    [b"", b"n,,", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01x=y\x01\x01", b"y,,\x01auth=Bearer a\x01\x01"],
)
def test_what_is_no_bearer_message(token: bytes) -> None:
    with pytest.raises(SaslFailed):
        OAuthBearerServer(unsecured_validator(RULES), lambda: NOW_MS).step(token)


def test_another_users_authorization_id() -> None:
    server = OAuthBearerServer(unsecured_validator(RULES), lambda: NOW_MS)
    with pytest.raises(SaslFailed, match="another user"):
        server.step(message(unsecured(**GOOD), "eve"))


@given(st.text(max_size=60))
def test_any_text_as_a_token(token: str) -> None:
    with pytest.raises(InvalidToken):
        unsecured_validator(RULES)(token, NOW_MS)


class Signer(tokens.Signer):
    """With the claims that are believed here."""

    def token(self, algorithm: str, kid: str, **changes: object) -> str:
        return self.sign(algorithm, kid, claims(**GOOD, **changes))


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


def test_signed_tokens(signer: Signer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(signer.set))
    validate = signed_validator(KeySet(path_of(path.as_uri())), RULES)
    for algorithm, kid in (("RS256", "r"), ("ES256", "e")):
        token = signer.token(algorithm, kid)
        assert validate(token, NOW_MS).subject == "ann"
        head, body, signature = token.split(".")
        forged = f"{head}.{segment(claims(**GOOD, sub='eve'))}.{signature}"
        with pytest.raises(InvalidToken, match="signature"):
            validate(forged, NOW_MS)
        with pytest.raises(InvalidToken, match="expired"):
            validate(signer.token(algorithm, kid, exp=1), NOW_MS)
        with pytest.raises(InvalidToken, match="algorithm"):
            validate(f"{segment({'alg': 'none'})}.{body}.", NOW_MS)
        with pytest.raises(InvalidToken, match="algorithm"):
            validate(f"{segment({'alg': 'HS256', 'kid': kid})}.{body}.{signature}", NOW_MS)
    with pytest.raises(InvalidToken, match="no key"):
        validate(signer.token("RS256", "e"), NOW_MS)


def test_critical_extensions_are_refused(tmp_path: Path) -> None:
    """Nobody here understands any, so a token that demands it is not believed (RFC 7515, 4.1.11)."""
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key()))
    validate = validator_of(tmp_path / "keys", jwk)
    assert validate(signed("ES256", key, claims(**GOOD)), NOW_MS).subject == "ann"
    for crit in (["x"], ["exp"], ["b64"], [], "nonsense", None):
        header = {"alg": "ES256", "crit": crit, "x": 1, "b64": True}
        with pytest.raises(InvalidToken):
            validate(signed("ES256", key, claims(**GOOD), header), NOW_MS)
        unsigned = f"{segment({'alg': 'none', 'crit': crit})}.{segment(claims(**GOOD))}."
        with pytest.raises(InvalidToken, match="crit"):
            unsecured_validator(RULES)(unsigned, NOW_MS)


def validator_of(path: Path, *keys: dict[str, Any]) -> Validator:
    path.write_text(json.dumps({"keys": keys}))
    return signed_validator(KeySet(path), RULES)


def test_each_algorithm_is_believed(tmp_path: Path) -> None:
    rsa_key, p384 = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())
    algorithms: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {
        **dict.fromkeys(("RS256", "RS384", "RS512"), rsa_key),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "ES384": p384,
    }
    for algorithm, key in algorithms.items():
        jwk = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key()))
        validate = validator_of(tmp_path / algorithm, {**jwk, "kid": "a"})
        token = jwt.encode(claims(**GOOD), key, algorithm, {"kid": "a"})
        assert validate(token, NOW_MS).subject == "ann"
        assert validate(jwt.encode(claims(**GOOD), key, algorithm), NOW_MS).subject == "ann", "without kid"
        private = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key))
        assert validator_of(tmp_path / "private", {**private, "kid": "a"})(token, NOW_MS).subject == "ann"
    # Keys that others use: PS256 is no algorithm of ours, nor is a curve of another size.
    with pytest.raises(InvalidToken, match="algorithm"):
        validator_of(tmp_path / "PS256", jwk)(jwt.encode(claims(**GOOD), rsa_key, "PS256"), NOW_MS)
    with pytest.raises(InvalidToken, match="key for it cannot be used"):
        validate(tokens.signed("ES256", p384, claims(**GOOD)), NOW_MS)


def test_keys_that_are_not_used(tmp_path: Path, signer: Signer) -> None:
    short = rsa.generate_private_key(65537, 1024)
    jwk = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(short.public_key()))
    with pytest.raises(InvalidToken, match="key for it cannot be used"):
        validator_of(tmp_path / "short", jwk)(tokens.signed("RS256", short, claims(**GOOD)), NOW_MS)
    usual = signer.set["keys"][0]
    token = signer.token("RS256", "r")
    for changes in ({"n": 7}, {"n": "?"}, {"n": None}, {"e": "AA"}):
        with pytest.raises(InvalidToken, match="key for it cannot be used"):
            validator_of(tmp_path / "broken", {**usual, **changes})(token, NOW_MS)
    for changes in ({"use": "enc"}, {"alg": "RS512"}, {"kid": "other"}, {"kty": "EC"}):
        with pytest.raises(InvalidToken, match="no key"):
            validator_of(tmp_path / "others", {**usual, **changes})(token, NOW_MS)
    with pytest.raises(InvalidToken, match="no key"):
        validator_of(tmp_path / "two", usual, usual)(token, NOW_MS)


def test_a_header_that_must_be_understood_and_is_not(tmp_path: Path, signer: Signer) -> None:
    header = {"alg": "RS256", "kid": "r", "crit": ["exp"], "exp": 1}
    token = tokens.signed("RS256", signer.rsa, claims(**GOOD), header)
    with pytest.raises(InvalidToken, match="not a signed token"):
        validator_of(tmp_path / "keys", *signer.set["keys"])(token, NOW_MS)


@given(st.text("eyJh.-_=0", max_size=60))
def test_any_text_as_a_signed_token(token: str) -> None:
    with tempfile.NamedTemporaryFile() as file, pytest.raises(InvalidToken):
        validator_of(Path(file.name))(token, NOW_MS)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(KeySetError, match=r"pip install 'pyjwt\[crypto\]'"):
        validator_of(tmp_path / "keys")


def test_keys_can_be_exchanged(signer: Signer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": []}))
    validate = signed_validator(KeySet(path), RULES)
    with pytest.raises(InvalidToken, match="no key"):
        validate(signer.token("ES256", "e"), NOW_MS)
    path.write_text(json.dumps(signer.set))
    assert validate(signer.token("ES256", "e"), NOW_MS).subject == "ann"
    path.write_text("{")
    with pytest.raises(KeySetError, match="not a JSON Web Key Set"):
        KeySet(path)


def test_keys_stay_in_use_while_their_file_cannot_be_read(
    signer: Signer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    whole = json.dumps(signer.set)
    path.write_text(whole)
    validate = signed_validator(KeySet(path), RULES)
    token = signer.token("ES256", "e")
    # Half written, then gone: whoever comes meanwhile is believed as before.
    for damage in (lambda: path.write_text(whole[:100]), path.unlink):
        damage()
        for _ in range(3):
            assert validate(token, NOW_MS).subject == "ann"
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2, "each reason is told once"
    assert "stay in use" in errors[0].getMessage()
    assert "No such file" in errors[1].getMessage()
    path.write_text(json.dumps({"keys": []}))
    with pytest.raises(InvalidToken, match="no key"):
        validate(token, NOW_MS)


def test_the_entry_shows_no_options() -> None:
    assert SECRET not in repr(JaasEntry("a", {"user_x": SECRET}))
