"""The security of a listener: TLS context, principal mapping rules, SASL mechanisms with users and keys.

The supervisor makes these objects before the first fork, so that unusable settings prevent the start. Every
processor inherits them, including the keys of TLS session tickets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.config.protocols import uses_sasl, uses_tls
from mpbroker.config.security import UNSECURED_VALIDATOR, SecuritySettings, missing, resolve
from mpbroker.protocol.api_versions import Served
from mpbroker.security import names
from mpbroker.security.jaas import JaasError, PlainUsers, parse_jaas
from mpbroker.security.jwks import Keys, KeySet, path_of, signed_validator
from mpbroker.security.jwks_endpoint import Endpoint, FetchedKeySet
from mpbroker.security.mechanism import Mechanism
from mpbroker.security.oauth import ClaimRules, OAuthBearerServer, Validator, unsecured_validator
from mpbroker.security.plain import PlainServer
from mpbroker.security.principals import ANONYMOUS, Principal, map_subject, parse_rules
from mpbroker.security.sasl import Offer
from mpbroker.security.scram import TYPES, ScramCredential, ScramServer, ScramType, TokenLookUp, no_tokens
from mpbroker.security.tls import Keystore

LookUp: TypeAlias = Callable[[ScramType, str], ScramCredential | None]
# Options of OAuthBearerLoginModule that Kafka's unsecured validator has.
CLAIM_NAME, SCOPE_NAME = "unsecuredValidatorPrincipalClaimName", "unsecuredValidatorScopeClaimName"
REQUIRED_SCOPE, SKEW_MS = "unsecuredValidatorRequiredScope", "unsecuredValidatorAllowableClockSkewMs"


class SecurityError(ValueError):
    """A listener cannot be served. The message names the listener and the problem."""


class ListenerSecurity:
    """The security of one listener that is not PLAINTEXT. The constructor raises SecurityError."""

    def __init__(self, name: str, protocol: str, config: BrokerConfig) -> None:
        self.name = name
        self.uses_tls = uses_tls(protocol)
        self.uses_sasl = uses_sasl(protocol)
        self.settings = config.security_of(name)
        self.keystore: Keystore | None = None
        self._config = config
        self._users = PlainUsers({})
        self._validator: Validator | None = None
        self._keys: Keys | None = None
        try:
            self.rules = parse_rules(self.settings.ssl_principal_mapping_rules)
            if self.uses_tls:
                self.keystore = Keystore(self.settings)
            if self.uses_sasl:
                for mechanism in self.settings.sasl_enabled_mechanisms:
                    self._prepare(mechanism, config.security_of(name, mechanism))
        except JaasError as error:
            raise SecurityError(f"listener {name}: sasl.jaas.config: {error}") from error
        except ValueError as error:
            raise SecurityError(f"listener {name}: {error}") from error

    def _prepare(self, mechanism: str, settings: SecuritySettings) -> None:
        jaas = settings.sasl_jaas_config
        options = parse_jaas(jaas).options if jaas is not None else {}
        if mechanism == "PLAIN" and jaas is not None:
            self._users = PlainUsers.of(parse_jaas(jaas))
        elif mechanism == "OAUTHBEARER":
            if settings.sasl_server_callback_handler_class != UNSECURED_VALIDATOR:
                self._keys = _keys(settings)
            self._validator = _validator(settings, options, self._keys)

    def fetch_keys(self) -> None:
        """Fetch the keys for tokens once, if they come from another host. It may take some seconds."""
        if isinstance(self._keys, FetchedKeySet):
            self._keys.fetch_now()

    def offer(
        self,
        served: tuple[Served, ...],
        look_up: LookUp,
        now_ms: Callable[[], int],
        look_up_token: TokenLookUp = no_tokens,
    ) -> Offer:
        """Return the SASL mechanisms for a connection. Call it in the process that serves the connection."""
        if self._keys is not None:
            self._keys.follow()
        mechanisms = self.settings.sasl_enabled_mechanisms
        limits = {
            name: self._config.security_of(self.name, name).connections_max_reauth_ms for name in mechanisms
        }

        def make(mechanism: str) -> Mechanism:
            if mechanism == "PLAIN":
                return PlainServer(self._users)
            if mechanism == "OAUTHBEARER":
                assert self._validator is not None
                return OAuthBearerServer(self._validator, now_ms)
            return ScramServer(TYPES[mechanism], look_up, look_up_token=look_up_token, now_ms=now_ms)

        return Offer(mechanisms, make, served, limits, now_ms)

    def principal(self, certificate: bytes | None) -> Principal:
        """Return the principal of a client that authenticates with TLS alone.

        Raises ValueError, such as NoRuleMatches.
        """
        if not certificate:
            return ANONYMOUS
        return map_subject(self.rules, names.subject_of(certificate))


def _validator(settings: SecuritySettings, options: dict[str, str], keys: Keys | None) -> Validator:
    rules = ClaimRules(
        subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        required_scope=frozenset(settings.mpbroker_sasl_oauthbearer_required_scope),
        audience=frozenset(settings.sasl_oauthbearer_expected_audience),
        issuer=settings.sasl_oauthbearer_expected_issuer,
        skew_ms=settings.sasl_oauthbearer_clock_skew_seconds * 1000,
    )
    if keys is not None:
        return signed_validator(keys, rules)
    skew_ms = options.get(SKEW_MS, "0")
    if not skew_ms.isdecimal():
        raise SecurityError(f"{SKEW_MS} of sasl.jaas.config is not a number of milliseconds")
    rules = replace(
        rules,
        subject_claim=options.get(CLAIM_NAME, "sub"),
        scope_claim=options.get(SCOPE_NAME, "scope"),
        required_scope=rules.required_scope | frozenset(options.get(REQUIRED_SCOPE, "").split()),
        skew_ms=int(skew_ms),
    )
    return unsecured_validator(rules)


def _keys(settings: SecuritySettings) -> Keys:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    assert url is not None
    if url.startswith("file:"):
        return KeySet(path_of(url))
    return FetchedKeySet(
        Endpoint(
            url,
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
    )


def settings_of(listener: Listener, config: BrokerConfig) -> dict[str, SecuritySettings]:
    """Return the security settings of a listener and of its mechanisms, by `NAME` and `NAME/MECHANISM`.

    If the configuration does not name the listener, use the settings without a listener's prefix.
    """
    name, known = listener.name, config.listener_security
    if name not in known:
        known = resolve(config, {name: listener.protocol}, {})
    return {key: own for key, own in known.items() if key.partition("/")[0] == name}


def security_of_added(listener: Listener, config: BrokerConfig) -> ListenerSecurity:
    """Return the security of a listener that is added to a running broker. Raises SecurityError.

    It is made from the settings that `settings_of` returns for the listener.
    """
    name, protocol = listener.name, listener.protocol
    known = {**config.listener_security, **settings_of(listener, config)}
    config = structs.replace(config, listener_security=known)
    if problems := missing(name, protocol, known):
        raise SecurityError("; ".join(problems))
    return ListenerSecurity(name, protocol, config)


def secure_listeners(config: BrokerConfig) -> dict[int, ListenerSecurity]:
    """Return the security of all listeners that are not PLAINTEXT, by number. Raises SecurityError."""
    return {
        number: ListenerSecurity(listener.name, listener.protocol, config)
        for number, listener in enumerate(config.listeners)
        if listener.protocol != "PLAINTEXT"
    }
