/* The client's half of SCRAM-SHA-256 (RFC 5802, RFC 7677), for a generator that logs in on every connection.
 *
 * It does not ask whether the server knows the password, too: it is the one under test.
 */
#ifndef MPBROKER_BENCH_SCRAM_H
#define MPBROKER_BENCH_SCRAM_H

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SCRAM_TEXT_BYTES = 512, SCRAM_NONCE_BYTES = 18 };

struct scram {
    const char *user, *password;
    char first_bare[SCRAM_TEXT_BYTES];
};

/* The salted password: it costs thousands of hashes, so it is computed once and not for each connection. */
static struct {
    char parameters[SCRAM_TEXT_BYTES];
    unsigned char salted[SHA256_DIGEST_LENGTH];
} scram_known;

/* The first message: its length. */
static int scram_first(struct scram *s, char *out)
{
    unsigned char random[SCRAM_NONCE_BYTES];
    char nonce[2 * SCRAM_NONCE_BYTES];
    RAND_bytes(random, sizeof random);
    EVP_EncodeBlock((unsigned char *)nonce, random, sizeof random);
    snprintf(s->first_bare, sizeof s->first_bare, "n=%.200s,r=%s", s->user, nonce);
    return snprintf(out, SCRAM_TEXT_BYTES, "n,,%s", s->first_bare);
}

static void scram_hmac(const unsigned char *key, const char *text, unsigned char *out)
{
    HMAC(EVP_sha256(), key, SHA256_DIGEST_LENGTH, (const unsigned char *)text, strlen(text), out, NULL);
}

/* False: salt or iterations are not those of a server. */
static bool scram_salt(const struct scram *s, const char *parameters)
{
    char salt[SCRAM_TEXT_BYTES];
    unsigned char bytes[SCRAM_TEXT_BYTES];
    int iterations;
    if (!strcmp(scram_known.parameters, parameters))
        return true;
    if (sscanf(parameters, "s=%511[^,],i=%d", salt, &iterations) != 2 || iterations < 1)
        return false;
    int size = EVP_DecodeBlock(bytes, (const unsigned char *)salt, (int)strlen(salt));
    if (size < 0)
        return false;
    for (size_t end = strlen(salt); end && salt[end - 1] == '='; end--)
        size--;
    PKCS5_PBKDF2_HMAC(s->password, (int)strlen(s->password), bytes, size, iterations, EVP_sha256(),
                      SHA256_DIGEST_LENGTH, scram_known.salted);
    snprintf(scram_known.parameters, SCRAM_TEXT_BYTES, "%s", parameters);
    return true;
}

/* The last message, which answers the server's first one: its length, or -1 where that is none. */
static int scram_final(const struct scram *s, const char *server_first, char *out)
{
    const char *parameters = strstr(server_first, ",s=");
    if (strncmp(server_first, "r=", 2) || !parameters || !scram_salt(s, parameters + 1))
        return -1;
    char without_proof[SCRAM_TEXT_BYTES], message[3 * SCRAM_TEXT_BYTES], proof[SHA256_DIGEST_LENGTH * 2];
    unsigned char key[SHA256_DIGEST_LENGTH], stored[SHA256_DIGEST_LENGTH], signature[SHA256_DIGEST_LENGTH];
    snprintf(without_proof, sizeof without_proof, "c=biws,%.*s", (int)(parameters - server_first), server_first);
    snprintf(message, sizeof message, "%s,%s,%s", s->first_bare, server_first, without_proof);
    scram_hmac(scram_known.salted, "Client Key", key);
    SHA256(key, sizeof key, stored);
    scram_hmac(stored, message, signature);
    for (size_t i = 0; i < sizeof key; i++)
        key[i] ^= signature[i];
    EVP_EncodeBlock((unsigned char *)proof, key, sizeof key);
    return snprintf(out, SCRAM_TEXT_BYTES, "%.400s,p=%s", without_proof, proof);
}

#endif
