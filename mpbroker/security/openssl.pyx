# distutils: libraries = ssl crypto
"""A TLS server's context (OpenSSL's SSL_CTX), made from PEM in memory.

Python's ssl module gives no access to its SSL_CTX, and its connections copy each record two times more than
necessary. So this module binds the functions that a *server* needs, and `network.processor.tls_pipe` moves
the bytes. Clients use Python's module. Errors are ssl.SSLError with OpenSSL's reason, which does not contain
any bytes of a key.
"""

import ssl

from libc.string cimport memcpy

# The libraries that encrypt here. Python's ssl module may have been linked with others.
VERSION = OpenSSL_version(OPENSSL_VERSION).decode("ascii", "replace")  # type: str
VERSION_INFO = (OPENSSL_version_major(), OPENSSL_version_minor())  # type: tuple[int, int]
# Forward secrecy and authenticated encryption first; nothing with less than 112 bits (Python's choice since
# 3.10). Of those AES of 128 bits first: ten rounds instead of fourteen, for a strength far beyond any attack.
DEFAULT_CIPHERS = (
    "@SECLEVEL=2:ECDH+AESGCM+AES128:ECDH+AESGCM:ECDH+CHACHA20:"
    "ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
)
DEFAULT_SUITES = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

cdef struct Password:
    const char *text
    int length

VERIFY_NONE = SSL_VERIFY_NONE
VERIFY_REQUESTED = SSL_VERIFY_PEER
VERIFY_REQUIRED = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT

cdef object failure(object kind, str what):
    """Return an exception of type `kind` with OpenSSL's first reason, or with `what` if there is none."""
    cdef unsigned long code = ERR_peek_error()
    cdef const char *text = ERR_reason_error_string(code) if code else NULL
    reason = text.decode("ascii", "replace") if text != NULL else what
    ERR_clear_error()
    error = kind(1, reason)
    error.reason = reason
    return error

cdef int tell_password(char *into, int room, int writing, void *known) noexcept nogil:
    """Copy the password to OpenSSL, which would otherwise ask the terminal. Return its length, or -1."""
    cdef Password *password = <Password *>known
    if password.length > room:
        return -1
    memcpy(into, password.text, password.length)
    return password.length

cdef bint at_end() noexcept nogil:
    """Return whether the last read of a PEM block failed only because no block was left."""
    if ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE:
        return False
    ERR_clear_error()
    return True


cdef class ServerContext:
    """A TLS server's context, for the protocol versions from `lowest` to `highest` (inclusive).

    All methods raise ssl.SSLError.
    """

    def __init__(self, int lowest, int highest):
        ERR_clear_error()
        self.context = SSL_CTX_new(TLS_server_method())
        if self.context == NULL:
            raise failure(ssl.SSLError, "no context")
        SSL_CTX_set_mode(self.context, SSL_MODE_AUTO_RETRY | SSL_MODE_RELEASE_BUFFERS)
        SSL_CTX_set_options(
            self.context,
            SSL_OP_NO_COMPRESSION
            | SSL_OP_NO_RENEGOTIATION
            | SSL_OP_CIPHER_SERVER_PREFERENCE
            # A client that names ChaCha20 first has no AES in hardware.
            | SSL_OP_PRIORITIZE_CHACHA
            # Java and Python clients often close without notice.
            | SSL_OP_IGNORE_UNEXPECTED_EOF,
        )
        # Sessions are in the tickets that clients hold. A cache here would be unknown to other processors.
        SSL_CTX_set_session_cache_mode(self.context, SSL_SESS_CACHE_OFF)
        SSL_CTX_set_session_id_context(self.context, <const unsigned char *>b"mpbroker", 8)
        SSL_CTX_set_dh_auto(self.context, 1)
        if not (
            SSL_CTX_set_min_proto_version(self.context, lowest)
            and SSL_CTX_set_max_proto_version(self.context, highest)
        ):
            raise failure(ssl.SSLError, "no such version")
        self.set_ciphers(DEFAULT_CIPHERS)
        self.set_suites(DEFAULT_SUITES)

    def __dealloc__(self):
        SSL_CTX_free(self.context)

    def set_ciphers(self, str names) -> None:
        """Set the ciphers of TLS 1.2, in OpenSSL's list format."""
        ERR_clear_error()
        if not SSL_CTX_set_cipher_list(self.context, names.encode("ascii")):
            raise failure(ssl.SSLError, "no cipher")

    def set_suites(self, str names) -> None:
        """Set the suites of TLS 1.3, separated by colons."""
        ERR_clear_error()
        if not SSL_CTX_set_ciphersuites(self.context, names.encode("ascii")):
            raise failure(ssl.SSLError, "no suite")

    def load_chain(self, bytes pem, str password) -> None:
        """Load the private key and the server's certificate chain from `pem`.

        `password` opens the private key. OpenSSL never asks the terminal for a password.
        """
        ERR_clear_error()
        self._use_key(pem, password.encode())
        self._use_certificates(pem)
        if not SSL_CTX_check_private_key(self.context):
            raise failure(ssl.SSLError, "the key is another's")

    def verify_clients(self, int mode) -> None:
        """Set whether clients are to send certificates: VERIFY_NONE, VERIFY_REQUESTED or VERIFY_REQUIRED."""
        SSL_CTX_set_verify(self.context, mode, NULL)

    def trust(self, bytes pem) -> None:
        """Trust the certificates in `pem` as authorities that sign clients' certificates."""
        cdef X509 *one
        cdef X509_STORE *store = SSL_CTX_get_cert_store(self.context)
        cdef BIO *source = read_only(pem)
        cdef int count = 0
        cdef bint added = True
        ERR_clear_error()
        while added:
            one = PEM_read_bio_X509(source, NULL, NULL, NULL)
            if one == NULL:
                break
            count += 1
            added = X509_STORE_add_cert(store, one)
            X509_free(one)
        BIO_free(source)
        if not (added and at_end() and count):
            raise failure(ssl.SSLError, "no certificate")

    def revoke(self, bytes pem) -> None:
        """Refuse clients' certificates that the revocation lists in `pem` name.

        Every authority in a client's chain needs a list that has not expired.
        """
        cdef X509_CRL *one
        cdef X509_STORE *store = SSL_CTX_get_cert_store(self.context)
        cdef BIO *source = read_only(pem)
        cdef int count = 0
        cdef bint added = True
        ERR_clear_error()
        while added:
            one = PEM_read_bio_X509_CRL(source, NULL, NULL, NULL)
            if one == NULL:
                break
            count += 1
            added = X509_STORE_add_crl(store, one)
            X509_CRL_free(one)
        BIO_free(source)
        if not (added and at_end() and count):
            raise failure(ssl.SSLError, "no revocation list")
        X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL)

    cdef _use_key(self, bytes pem, bytes password):
        cdef Password known
        cdef EVP_PKEY *key
        cdef BIO *source
        known.text, known.length = password, len(password)
        source = read_only(pem)
        key = PEM_read_bio_PrivateKey(source, NULL, tell_password, &known)
        BIO_free(source)
        if key == NULL:
            raise failure(ssl.SSLError, "no private key")
        used = SSL_CTX_use_PrivateKey(self.context, key)
        EVP_PKEY_free(key)
        if not used:
            raise failure(ssl.SSLError, "the private key cannot be used")

    cdef _use_certificates(self, bytes pem):
        """Use the certificates in `pem`: the server's certificate, then the rest of its chain."""
        cdef X509 *one
        cdef BIO *source = read_only(pem)
        cdef int count = 0
        cdef bint used = True
        while used:
            one = PEM_read_bio_X509(source, NULL, NULL, NULL)
            if one == NULL:
                break
            count += 1
            if count == 1:
                used = SSL_CTX_use_certificate(self.context, one)
                X509_free(one)
            else:
                used = SSL_CTX_add0_chain_cert(self.context, one)
                if not used:
                    X509_free(one)
        BIO_free(source)
        if not (used and at_end() and count):
            raise failure(ssl.SSLError, "no certificate")


cdef BIO *read_only(bytes data) except NULL:
    cdef BIO *source = BIO_new_mem_buf(<const char *>data, <int>len(data))
    if source == NULL:
        raise MemoryError
    return source


def dump_subject(bytes certificate) -> str:
    """Return the subject of a DER certificate as `OID=#VALUE+…,…`. Raises ValueError.

    Values are DER in hexadecimal. Relative distinguished names are in the order of the certificate.
    """
    cdef const unsigned char *at = certificate
    cdef char *printed
    cdef BIO *out = NULL
    ERR_clear_error()
    cdef X509 *parsed = d2i_X509(NULL, &at, len(certificate))
    try:
        if parsed == NULL:
            raise ValueError("the bytes are no X.509 certificate")
        out = BIO_new(BIO_s_mem())
        flags = ASN1_STRFLGS_DUMP_ALL | ASN1_STRFLGS_DUMP_DER | XN_FLAG_FN_OID | XN_FLAG_SEP_COMMA_PLUS
        if out == NULL or X509_NAME_print_ex(out, X509_get_subject_name(parsed), 0, flags) < 0:
            raise ValueError("the certificate's subject cannot be printed")
        size = BIO_get_mem_data(out, &printed)
        return printed[:size].decode("ascii")
    finally:
        ERR_clear_error()
        BIO_free(out)
        X509_free(parsed)
