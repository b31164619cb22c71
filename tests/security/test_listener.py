"""What a listener needs, put together from settings; what is missing refuses the start, showing no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from mpbroker.config.keys import ConfigError
from mpbroker.config.load import load
from mpbroker.config.security import UNSECURED_VALIDATOR
from mpbroker.protocol.api_versions import Served
from mpbroker.security.listener import ListenerSecurity, SecurityError, secure_listeners
from mpbroker.security.principals import ANONYMOUS, NoRuleMatches, Principal
from tests.support.certificates import Authority

AUTHORITY = Authority()
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAIN = f'listener.name.in.plain.sasl.jaas.config={MODULE} required user_ann="hunter2";'
SASL = "listeners=IN://127.0.0.1:1\nlistener.security.protocol.map=IN:SASL_PLAINTEXT\n"
TLS = "listeners=IN://127.0.0.1:1\nlistener.security.protocol.map=IN:SSL\n"


def made(tmp_path: Path, text: str) -> ListenerSecurity:
    """Listener IN with these settings; {d} is a directory with certificates and key sets."""
    AUTHORITY.sign("broker").write(tmp_path / "broker.pem")
    AUTHORITY.write(tmp_path / "ca.pem")
    (tmp_path / "keys.json").write_text('{"keys": []}')
    file = tmp_path / "server.properties"
    file.write_text(text.replace("{d}", str(tmp_path)))
    return secure_listeners(load(file).config)[0]


def offered(security: ListenerSecurity) -> dict[str, int]:
    """Mechanisms, each of which can be made, with the longest life of their sessions."""
    offer = security.offer((Served(18, 0, 4),), lambda *_: None, lambda: 0)
    assert [type(offer.make(name)).__name__ for name in offer.mechanisms]
    return {name: offer.max_reauth_ms[name] for name in offer.mechanisms}


def test_settings_of_broker_listener_and_mechanism(tmp_path: Path) -> None:
    text = (
        f"{SASL}{PLAIN}\nsasl.enabled.mechanisms=GSSAPI\nconnections.max.reauth.ms=1\n"
        "listener.name.in.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER\n"
        "listener.name.in.connections.max.reauth.ms=2\n"
        "listener.name.in.scram-sha-256.connections.max.reauth.ms=3\n"
        "listener.name.in.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=file://{d}/keys.json\n"
    )
    security = made(tmp_path, text)
    assert offered(security) == {"PLAIN": 2, "SCRAM-SHA-256": 3, "OAUTHBEARER": 2}
    assert security.keystore is None
    assert "hunter2" not in repr(vars(security)) + repr(security.settings)


def test_principals_of_certificates(tmp_path: Path) -> None:
    rules = "ssl.principal.mapping.rules=RULE:^CN=([^,]*),O=.*$/$1/U\n"
    security = made(tmp_path, f"{TLS}ssl.keystore.location={{d}}/broker.pem\n{rules}")
    assert security.principal(None) == ANONYMOUS
    assert security.principal(AUTHORITY.sign("jane").der) == Principal("JANE")
    with pytest.raises(NoRuleMatches):
        security.principal(AUTHORITY.sign(x509.Name([])).der)


def test_the_general_client_auth_is_not_for_sasl(tmp_path: Path) -> None:
    general = (
        "listeners=IN://127.0.0.1:1\nlistener.security.protocol.map=IN:SASL_SSL\nsasl.enabled.mechanisms=PLAIN\n"
        f"{PLAIN}\nssl.keystore.location={{d}}/broker.pem\nssl.client.auth=required\n"
        "ssl.truststore.location={d}/ca.pem\n"
    )
    assert made(tmp_path, general).settings.ssl_client_auth == "none"
    own = general + "listener.name.in.ssl.client.auth=required\n"
    assert made(tmp_path, own).settings.ssl_client_auth == "required"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TLS, "has no certificate"),
        (f"{TLS}ssl.keystore.location=/nowhere/x.pem", "cannot be read: No such file"),
        (f"{TLS}ssl.keystore.location={{d}}/ca.pem", "has no private key"),
        (f"{TLS}ssl.keystore.location={{d}}/broker.pem\nssl.client.auth=required", "nothing to check"),
        (f"{TLS}ssl.keystore.location={{d}}/broker.pem\nssl.principal.mapping.rules=x", "is not a rule"),
        (SASL, "GSSAPI, which is not built"),
        (f"{SASL}sasl.enabled.mechanisms=PLAIN", "knows no users"),
        (f"{SASL}sasl.enabled.mechanisms=PLAIN\n{PLAIN[:-1]}", "must end with one ';'"),
        (f"{SASL}sasl.enabled.mechanisms=OAUTHBEARER", "has no keys to check tokens with"),
        (
            f"{SASL}sasl.enabled.mechanisms=OAUTHBEARER\n"
            "listener.name.in.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=http://x/keys",
            "a key set is read from file:///… or https://…",
        ),
        (
            f"{SASL}sasl.enabled.mechanisms=OAUTHBEARER\n"
            "sasl.oauthbearer.jwks.endpoint.url=file://{d}/broker.pem",
            "is not a JSON Web Key Set",
        ),
        (
            f"{SASL}sasl.enabled.mechanisms=OAUTHBEARER\nsasl.server.callback.handler.class=a.b.C",
            "Java classes cannot be loaded",
        ),
        (
            f"{SASL}sasl.enabled.mechanisms=OAUTHBEARER\n"
            f"sasl.server.callback.handler.class={UNSECURED_VALIDATOR}\n"
            "listener.name.in.oauthbearer.sasl.jaas.config=a.B required "
            "unsecuredValidatorAllowableClockSkewMs=hunter2;",
            "is not a number of milliseconds",
        ),
    ],
)
def test_what_refuses_the_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((SecurityError, ConfigError)) as raised:
        made(tmp_path, text)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)
