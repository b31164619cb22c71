"""Settings of TLS and SASL: the broker's, and their overrides per listener and mechanism.

Kafka reads a key as `listener.name.<listener>.<mechanism>.<key>`, `listener.name.<listener>.<key>` or
`<key>`: the first of the three that is set (ListenerName.configPrefix, BrokerSecurityConfigs). `resolve` does
this for all listeners when the configuration is loaded. Passwords and private keys are of type `Secret`: no
log, error or description can show them by mistake.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from mpbroker.config.keys import ConfigType, Key, Secret, field_name, table_of
from mpbroker.config.protocols import TLS_VERSIONS, uses_sasl, uses_tls

CLASS, INT, LIST, LONG = ConfigType.CLASS, ConfigType.INT, ConfigType.LIST, ConfigType.LONG
PASSWORD, STRING = ConfigType.PASSWORD, ConfigType.STRING

MECHANISMS_BUILT = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
UNSECURED_VALIDATOR = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)
_PREFIXED = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)")


def _jwks_url(url: str | None) -> str:
    if url is None or url.startswith("file:///"):
        return ""
    if (parts := urlsplit(url)).scheme == "https" and parts.hostname and not parts.username:
        return ""
    return "a key set is read from file:///… or https://…"


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Security settings of a listener, or of one SASL mechanism of a listener."""

    ssl_keystore_type: Annotated[
        str, Key(STRING, "PEM or PKCS12; JKS is Java's own.", choices=("PEM", "PKCS12", "JKS"), begins="TLS")
    ] = "PEM"
    ssl_keystore_location: Annotated[
        str | None, Key(STRING, "File with the private key and the certificate chain of the broker.")
    ] = None
    ssl_keystore_password: Annotated[Secret | None, Key(PASSWORD, "Password of a PKCS12 key store.")] = None
    ssl_keystore_key: Annotated[
        Secret | None, Key(PASSWORD, "Private key in PEM, instead of ssl.keystore.location.")
    ] = None
    ssl_keystore_certificate_chain: Annotated[
        Secret | None, Key(PASSWORD, "Certificate chain in PEM, instead of ssl.keystore.location.")
    ] = None
    ssl_key_password: Annotated[Secret | None, Key(PASSWORD, "Password of the private key.")] = None
    ssl_truststore_type: Annotated[
        str, Key(STRING, "PEM or PKCS12; JKS is Java's own.", choices=("PEM", "PKCS12", "JKS"))
    ] = "PEM"
    ssl_truststore_location: Annotated[
        str | None, Key(STRING, "File with the certificates that clients' certificates are checked against.")
    ] = None
    ssl_truststore_password: Annotated[Secret | None, Key(PASSWORD, "Password of a PKCS12 store.")] = None
    ssl_truststore_certificates: Annotated[
        Secret | None, Key(PASSWORD, "Trusted certificates in PEM, instead of ssl.truststore.location.")
    ] = None
    mpbroker_ssl_crl_location: Annotated[
        str | None,
        Key(
            STRING,
            "File with certificate revocation lists in PEM, one of each authority; clients whose "
            "certificates they name are refused.",
        ),
    ] = None
    ssl_enabled_protocols: Annotated[
        tuple[str, ...], Key(LIST, "Versions of TLS that are accepted.", choices=TLS_VERSIONS)
    ] = TLS_VERSIONS
    ssl_cipher_suites: Annotated[
        tuple[str, ...],
        Key(LIST, "Cipher suites by their IANA names, the preferred first; empty: all that are safe."),
    ] = ()
    ssl_client_auth: Annotated[
        str,
        Key(
            STRING,
            "Whether clients show a certificate; on SASL_SSL only with the listener's prefix.",
            choices=("none", "requested", "required"),
        ),
    ] = "none"
    ssl_principal_mapping_rules: Annotated[
        str, Key(STRING, "Rules from a certificate's subject to a user name.")
    ] = "DEFAULT"
    sasl_enabled_mechanisms: Annotated[
        tuple[str, ...], Key(LIST, "SASL mechanisms that clients may choose from.", begins="SASL")
    ] = ("GSSAPI",)
    sasl_jaas_config: Annotated[
        Secret | None, Key(PASSWORD, "Login module and options of a mechanism; only with its prefix.")
    ] = None
    sasl_server_callback_handler_class: Annotated[
        str | None, Key(CLASS, "Only OAUTHBEARER's unsecured validator can be named; classes are not loaded.")
    ] = None
    sasl_server_max_receive_size: Annotated[
        int, Key(INT, "Largest frame that is read from a client before it has authenticated.", at_least=1)
    ] = 524_288
    sasl_oauthbearer_jwks_endpoint_url: Annotated[
        str | None, Key(STRING, "file:/// or https:// URL of the key set that signs tokens.", check=_jwks_url)
    ] = None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[
        int, Key(LONG, "Time between two fetches of the key set from https.", at_least=1)
    ] = 3_600_000
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Annotated[
        int, Key(LONG, "Wait after a failed fetch of the key set; doubled each time.", at_least=1)
    ] = 100
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Annotated[
        int, Key(LONG, "Longest wait after failed fetches of the key set.", at_least=1)
    ] = 10_000
    sasl_oauthbearer_expected_audience: Annotated[
        tuple[str, ...], Key(LIST, "A token must name one of these in its aud claim.")
    ] = ()
    sasl_oauthbearer_expected_issuer: Annotated[
        str | None, Key(STRING, "A token must have exactly this iss claim.")
    ] = None
    sasl_oauthbearer_clock_skew_seconds: Annotated[
        int, Key(INT, "How far the clocks of broker and issuer may differ.", at_least=0)
    ] = 30
    sasl_oauthbearer_scope_claim_name: Annotated[str, Key(STRING, "Claim with the scopes.")] = "scope"
    sasl_oauthbearer_sub_claim_name: Annotated[str, Key(STRING, "Claim with the user's name.")] = "sub"
    mpbroker_sasl_oauthbearer_required_scope: Annotated[
        tuple[str, ...], Key(LIST, "Scopes that a token must have, all of them.")
    ] = ()
    connections_max_reauth_ms: Annotated[
        int, Key(LONG, "Longest time between two authentications of a SASL connection; 0: no limit.")
    ] = 0


SECURITY_KEYS: dict[str, Key] = table_of(SecuritySettings)


def _split(key: str) -> tuple[str, str, str] | None:
    """Split the key of a listener's security setting into (listener, mechanism or "", key without prefix).

    Return None for any other key.
    """
    match = _PREFIXED.fullmatch(key)
    if match is None:
        return None
    rest, mechanism = match["rest"], ""
    if rest not in SECURITY_KEYS:
        mechanism, _, rest = rest.partition(".")
        if rest not in SECURITY_KEYS:
            return None
    return match["listener"].upper(), mechanism.upper(), rest


def names_setting(key: str) -> bool:
    """Return whether the key, with its prefix, is a security setting of one listener."""
    return _split(key) is not None


def prefixed(key: str, listeners: set[str]) -> tuple[str, str, Key]:
    """Return (listener, mechanism or "", setting) of a key. Raises ValueError for an unknown listener."""
    found = _split(key)
    assert found is not None
    listener, mechanism, rest = found
    if listener not in listeners:
        raise ValueError(
            f"{key}: listener {listener} does not exist; there are {', '.join(sorted(listeners))}"
        )
    return listener, mechanism, SECURITY_KEYS[rest]


def resolve(
    base: SecuritySettings, protocols: Mapping[str, str], overrides: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[str, SecuritySettings]:
    """Return the settings of all listeners, by `NAME`, and of their mechanisms, by `NAME/MECHANISM`.

    `protocols` has the security protocol by listener, `overrides` the fields by (listener, mechanism or "").
    """
    own = {name: getattr(base, name) for name in SecuritySettings.__struct_fields__}
    resolved = {}
    for listener, protocol in protocols.items():
        mine = overrides.get((listener, ""), {})
        values = {**own, **mine}
        # In Kafka the broker's general setting does not make SASL listeners ask for certificates.
        if uses_sasl(protocol) and field_name("ssl.client.auth") not in mine:
            values["ssl_client_auth"] = "none"
        resolved[listener] = SecuritySettings(**values)
        for mechanism in resolved[listener].sasl_enabled_mechanisms:
            special = overrides.get((listener, mechanism.upper()), {})
            resolved[f"{listener}/{mechanism}"] = SecuritySettings(**{**values, **special})
    return resolved


def missing(listener: str, protocol: str, settings: Mapping[str, SecuritySettings]) -> list[str]:
    """Return a text for each required setting that a listener lacks: what is missing and how to set it."""
    found = []
    own = settings[listener]
    where = f"listener.name.{listener.lower()}"
    if uses_tls(protocol):
        if not own.ssl_keystore_location and not (
            own.ssl_keystore_key and own.ssl_keystore_certificate_chain
        ):
            found.append(
                f"listener {listener} ({protocol}) has no certificate: set {where}.ssl.keystore.location to "
                "a PEM file with the private key and the certificate chain"
            )
        asks = own.ssl_client_auth != "none"
        if asks and not own.ssl_truststore_location and not own.ssl_truststore_certificates:
            found.append(
                f"listener {listener} has ssl.client.auth={own.ssl_client_auth} and nothing to check "
                f"certificates of clients against: set {where}.ssl.truststore.location to a PEM file"
            )
    if uses_sasl(protocol):
        if not own.sasl_enabled_mechanisms:
            found.append(f"listener {listener} has no SASL mechanism: set {where}.sasl.enabled.mechanisms")
        for mechanism in own.sasl_enabled_mechanisms:
            found += _missing_of(mechanism, listener, settings[f"{listener}/{mechanism}"])
    return found


def _missing_of(mechanism: str, listener: str, own: SecuritySettings) -> list[str]:
    where = f"listener.name.{listener.lower()}.{mechanism.lower()}"
    if mechanism not in MECHANISMS_BUILT:
        return [
            f"listener {listener} enables {mechanism}, which is not built; "
            f"sasl.enabled.mechanisms can have {', '.join(MECHANISMS_BUILT)}"
        ]
    if mechanism == "PLAIN" and own.sasl_jaas_config is None:
        return [
            f"listener {listener} enables PLAIN and knows no users: set {where}.sasl.jaas.config="
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_<name>="<password>";'
        ]
    handler = own.sasl_server_callback_handler_class
    unsecured = mechanism == "OAUTHBEARER" and handler == UNSECURED_VALIDATOR
    if handler is not None and not unsecured:
        return [f"{where}.sasl.server.callback.handler.class={handler}: Java classes cannot be loaded"]
    if mechanism == "OAUTHBEARER" and not unsecured and own.sasl_oauthbearer_jwks_endpoint_url is None:
        return [
            f"listener {listener} enables OAUTHBEARER and has no keys to check tokens with: set "
            f"{where}.sasl.oauthbearer.jwks.endpoint.url=file:///… to a JSON Web Key Set, or, for tests "
            f"only, {where}.sasl.server.callback.handler.class={UNSECURED_VALIDATOR}"
        ]
    return []
