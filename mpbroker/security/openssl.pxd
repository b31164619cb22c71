# Declarations of OpenSSL's libssl and libcrypto (3.0 or later), and of the class for its SSL_CTX.

from libc.stdint cimport uint8_t

cdef extern from "openssl/ssl.h":
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct SSL_CIPHER:
        pass
    ctypedef struct BIO:
        pass
    ctypedef struct BIO_METHOD:
        pass
    ctypedef struct X509:
        pass
    ctypedef struct X509_CRL:
        pass
    ctypedef struct X509_STORE:
        pass
    ctypedef struct X509_NAME:
        pass
    ctypedef struct EVP_PKEY:
        pass
    enum:
        SSL_ERROR_WANT_READ
        SSL_ERROR_ZERO_RETURN
        SSL_MODE_AUTO_RETRY
        SSL_MODE_RELEASE_BUFFERS
        SSL_OP_CIPHER_SERVER_PREFERENCE
        SSL_OP_IGNORE_UNEXPECTED_EOF
        SSL_OP_NO_COMPRESSION
        SSL_OP_NO_RENEGOTIATION
        SSL_OP_PRIORITIZE_CHACHA
        SSL_SESS_CACHE_OFF
        SSL_VERIFY_NONE
        SSL_VERIFY_PEER
        SSL_VERIFY_FAIL_IF_NO_PEER_CERT
    const SSL_METHOD *TLS_server_method() nogil
    SSL_CTX *SSL_CTX_new(const SSL_METHOD *) nogil
    void SSL_CTX_free(SSL_CTX *) nogil
    long SSL_CTX_set_mode(SSL_CTX *, long) nogil
    unsigned long SSL_CTX_set_options(SSL_CTX *, unsigned long) nogil
    long SSL_CTX_set_session_cache_mode(SSL_CTX *, long) nogil
    int SSL_CTX_set_session_id_context(SSL_CTX *, const unsigned char *, unsigned int) nogil
    int SSL_CTX_set_min_proto_version(SSL_CTX *, int) nogil
    int SSL_CTX_set_max_proto_version(SSL_CTX *, int) nogil
    int SSL_CTX_set_cipher_list(SSL_CTX *, const char *) nogil
    int SSL_CTX_set_ciphersuites(SSL_CTX *, const char *) nogil
    long SSL_CTX_set_dh_auto(SSL_CTX *, long) nogil
    void SSL_CTX_set_verify(SSL_CTX *, int, void *) nogil
    int SSL_CTX_use_certificate(SSL_CTX *, X509 *) nogil
    long SSL_CTX_add0_chain_cert(SSL_CTX *, X509 *) nogil
    int SSL_CTX_use_PrivateKey(SSL_CTX *, EVP_PKEY *) nogil
    int SSL_CTX_check_private_key(const SSL_CTX *) nogil
    X509_STORE *SSL_CTX_get_cert_store(const SSL_CTX *) nogil
    SSL *SSL_new(SSL_CTX *) nogil
    void SSL_free(SSL *) nogil
    void SSL_set_bio(SSL *, BIO *, BIO *) nogil
    void SSL_set_accept_state(SSL *) nogil
    int SSL_do_handshake(SSL *) nogil
    int SSL_read_ex(SSL *, void *, size_t, size_t *) nogil
    int SSL_write_ex(SSL *, const void *, size_t, size_t *) nogil
    int SSL_shutdown(SSL *) nogil
    int SSL_get_error(const SSL *, int) nogil
    const char *SSL_get_version(const SSL *) nogil
    const SSL_CIPHER *SSL_get_current_cipher(const SSL *) nogil
    const char *SSL_CIPHER_get_name(const SSL_CIPHER *) nogil
    X509 *SSL_get_peer_certificate(const SSL *) nogil

cdef extern from "openssl/bio.h":
    enum:
        BIO_TYPE_SOURCE_SINK
        BIO_CTRL_FLUSH
        BIO_CTRL_EOF
    BIO_METHOD *BIO_meth_new(int, const char *) nogil
    int BIO_meth_set_write(BIO_METHOD *, int (*)(BIO *, const char *, int) noexcept nogil) nogil
    int BIO_meth_set_read(BIO_METHOD *, int (*)(BIO *, char *, int) noexcept nogil) nogil
    int BIO_meth_set_ctrl(BIO_METHOD *, long (*)(BIO *, int, long, void *) noexcept nogil) nogil
    int BIO_get_new_index() nogil
    BIO *BIO_new(const BIO_METHOD *) nogil
    const BIO_METHOD *BIO_s_mem() nogil
    long BIO_get_mem_data(BIO *, char **) nogil
    BIO *BIO_new_mem_buf(const void *, int) nogil
    void BIO_free(BIO *) nogil
    void BIO_set_data(BIO *, void *) nogil
    void *BIO_get_data(BIO *) nogil
    void BIO_set_init(BIO *, int) nogil
    void BIO_set_retry_read(BIO *) nogil
    void BIO_clear_retry_flags(BIO *) nogil

cdef extern from "openssl/pem.h":
    X509 *PEM_read_bio_X509(BIO *, X509 **, int (*)(char *, int, int, void *) noexcept nogil, void *) nogil
    EVP_PKEY *PEM_read_bio_PrivateKey(
        BIO *, EVP_PKEY **, int (*)(char *, int, int, void *) noexcept nogil, void *
    ) nogil

cdef extern from "openssl/x509.h":
    X509_CRL *PEM_read_bio_X509_CRL(
        BIO *, X509_CRL **, int (*)(char *, int, int, void *) noexcept nogil, void *) nogil
    void X509_CRL_free(X509_CRL *) nogil
    void X509_free(X509 *) nogil
    int i2d_X509(X509 *, unsigned char **) nogil
    X509 *d2i_X509(X509 **, const unsigned char **, long) nogil
    X509_NAME *X509_get_subject_name(const X509 *) nogil
    int X509_NAME_print_ex(BIO *, const X509_NAME *, int, unsigned long) nogil
    enum:
        ASN1_STRFLGS_DUMP_ALL
        ASN1_STRFLGS_DUMP_DER
        XN_FLAG_FN_OID
        XN_FLAG_SEP_COMMA_PLUS
    void EVP_PKEY_free(EVP_PKEY *) nogil
    int X509_STORE_add_cert(X509_STORE *, X509 *) nogil
    int X509_STORE_add_crl(X509_STORE *, X509_CRL *) nogil
    int X509_STORE_set_flags(X509_STORE *, unsigned long) nogil
    enum:
        X509_V_FLAG_CRL_CHECK
        X509_V_FLAG_CRL_CHECK_ALL

cdef extern from "openssl/err.h":
    void ERR_clear_error() nogil
    unsigned long ERR_peek_error() nogil
    unsigned long ERR_peek_last_error() nogil
    const char *ERR_reason_error_string(unsigned long) nogil
    int ERR_GET_REASON(unsigned long) nogil
    enum:
        PEM_R_NO_START_LINE

cdef extern from "openssl/crypto.h":
    enum:
        OPENSSL_VERSION
    const char *OpenSSL_version(int) nogil
    unsigned int OPENSSL_version_major() nogil
    unsigned int OPENSSL_version_minor() nogil

cdef class ServerContext:
    cdef SSL_CTX *context
    cdef _use_key(self, bytes pem, bytes password)
    cdef _use_certificates(self, bytes pem)

cdef object failure(object kind, str what)
