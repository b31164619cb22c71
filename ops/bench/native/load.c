/* Load generator: one prepared Kafka request, sent again and again on N connections, one in flight on each.
 *
 *   load --port 9092 --connections 8 --seconds 4 --request produce.bin --error-at 25 --json
 *
 * Every response is checked: it has the request's correlation id, a zero as its 16-bit error code at --error-at
 * (counted from the first byte of the frame's size), and at least --min-response bytes. Only the first HEAD_BYTES of
 * a response are read; the rest goes into one scratch buffer that all connections share or, with --discard, is
 * dropped inside the kernel, so that a megabyte costs the generator little.
 *
 * With --reconnect a connection is used for one request. It is then reset, so that no port stays in TIME_WAIT, and a
 * new connection is made for the next request. The rate is then connections a second.
 *
 * With --rate so many requests a second become due, one after the other. Each is sent on the connection that has been
 * idle longest. Its latency counts from when it was due, even if it was sent later because no connection was idle. At
 * rates that the broker can serve, this is the latency of clients whose rate does not depend on the answers.
 *
 * With --tls-ca every connection is encrypted, and the server's certificate must be signed by one of these authorities.
 * All records that have arrived are read at once. A response goes into the same scratch buffer as without TLS.
 *
 * With --user and --password every connection logs in by SASL and SCRAM-SHA-256 before its first request. The
 * password is salted only once, so that the logins of --reconnect cost the generator little.
 *
 * With --partitions each request goes to the next of so many partitions. The request has the partition's number at
 * --partition-at, as 32 bits, or at --digits-at, as eight decimal digits of a name.
 *
 * Output: the line "measuring" when the warm-up is over, which tells the caller to sample the broker's CPU time; then
 * one line with the figures. Latencies go into a log-linear histogram (128 steps per power of two: less than 1 % off),
 * so that a run of any length takes the same memory.
 *
 * Exit code: 0 all well, 1 could not run or a connection broke, 2 a response was an error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "scram.h"

enum {
    HEAD_BYTES = 256,
    SCRATCH_BYTES = 1 << 18,
    EVENTS = 512,
    STEP_BITS = 7,                     /* 2^7 histogram steps per power of two */
    STEPS = 1 << STEP_BITS,
    BUCKETS = (64 - STEP_BITS) * STEPS,
    CORRELATION_ID_AT_REQUEST = 8,     /* size 4, api key 2, api version 2 */
    CORRELATION_ID_AT_RESPONSE = 4,
    SASL_HANDSHAKE = 17,
    SASL_AUTHENTICATE = 36,
    DIGITS = 8,
};

/* How long a run waits for its first response. */
static const uint64_t PATIENCE_NS = 10000000000u;

struct options {
    const char *host, *request_path, *tls_ca, *user, *password;
    int port, connections, error_at, partitions, partition_at, digits_at;
    double seconds, warmup, rate;
    size_t min_response;
    bool json, discard, reconnect;
};

struct request {
    unsigned char *bytes;
    size_t size;
};

struct connection {
    struct connection *next_idle;
    int fd;
    SSL *tls; /* NULL: plain */
    bool wants_write;
    size_t sent, received;
    uint64_t started_ns;
    unsigned char head[HEAD_BYTES];
};

struct totals {
    uint64_t responses, errors, bytes_in, bytes_out;
    int first_error_code;
    uint64_t longest_ns;
    uint64_t histogram[BUCKETS];
};

static struct options options = {.host = "127.0.0.1", .connections = 1, .error_at = -1, .seconds = 4};
static struct request request;
static struct totals totals;
static unsigned char scratch[SCRATCH_BYTES];
static int poller;
static SSL_CTX *tls_context; /* NULL: plain */

/* Those that wait for nothing, and when the next request is due; with --rate. */
static struct {
    struct connection *first, *last;
    double due_ns;
} idle;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t big_endian_32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return ntohl(value);
}

/* ---- latencies ---------------------------------------------------------------------------------------------- */

static size_t bucket_of(uint64_t ns)
{
    if (ns < STEPS)
        return ns;
    int power = 63 - __builtin_clzll(ns);
    return (size_t)(power - STEP_BITS + 1) * STEPS + ((ns >> (power - STEP_BITS)) & (STEPS - 1));
}

static uint64_t lowest_ns_of(size_t bucket)
{
    if (bucket < STEPS)
        return bucket;
    int power = (int)(bucket / STEPS) + STEP_BITS - 1;
    return (1ull << power) | ((uint64_t)(bucket % STEPS) << (power - STEP_BITS));
}

static double percentile_us(double share)
{
    uint64_t wanted = (uint64_t)((double)totals.responses * share), seen = 0;
    for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
        seen += totals.histogram[bucket];
        if (seen > wanted)
            return (double)lowest_ns_of(bucket) / 1e3;
    }
    return (double)totals.longest_ns / 1e3;
}

/* ---- one connection ------------------------------------------------------------------------------------------ */

static void watch(struct connection *c, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) < 0)
        fail("epoll_ctl: %s", strerror(errno));
}

/* What OpenSSL reports of a call that moved nothing, as a system call would. */
static ssize_t tls_result(struct connection *c, int result)
{
    switch (SSL_get_error(c->tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: return errno ? -1 : 0;
    default: fail("TLS: %s", ERR_reason_error_string(ERR_get_error()));
    }
}

static ssize_t put(struct connection *c, const void *from, size_t size)
{
    if (!c->tls)
        return send(c->fd, from, size, MSG_NOSIGNAL);
    ERR_clear_error();
    int n = SSL_write(c->tls, from, (int)size);
    return n > 0 ? n : tls_result(c, n);
}

static ssize_t get(struct connection *c, void *into, size_t size)
{
    if (!c->tls)
        return recv(c->fd, into, size, 0);
    ERR_clear_error();
    int n = SSL_read(c->tls, into, (int)size);
    return n > 0 ? n : tls_result(c, n);
}

/* Sends what the socket takes; asks to be told when it takes more. */
static void send_rest(struct connection *c)
{
    while (c->sent < request.size) {
        ssize_t n = put(c, request.bytes + c->sent, request.size - c->sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            fail("send: %s", strerror(errno));
        c->sent += (size_t)n;
        totals.bytes_out += (uint64_t)n;
    }
    bool wants_write = c->sent < request.size;
    if (wants_write != c->wants_write) {
        c->wants_write = wants_write;
        watch(c, wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    }
}

static void name_next_partition(void)
{
    static int next;
    if (options.digits_at) {
        char digits[DIGITS + 1];
        snprintf(digits, sizeof digits, "%0*d", DIGITS, next);
        memcpy(request.bytes + options.digits_at, digits, DIGITS);
    } else {
        uint32_t number = htonl((uint32_t)next);
        memcpy(request.bytes + options.partition_at, &number, sizeof number);
    }
    next = (next + 1) % options.partitions;
}

static void send_anew(struct connection *c, uint64_t now)
{
    c->sent = c->received = 0;
    c->started_ns = now;
    if (options.partitions)
        name_next_partition();
    send_rest(c);
    if (options.partitions && c->sent < request.size)
        fail("a request that names its own partition has to fit into the socket at once");
}

/* Whatever is due, as far as there are connections for it. */
static void send_due(uint64_t now)
{
    while (idle.first && idle.due_ns <= (double)now) {
        struct connection *c = idle.first;
        idle.first = c->next_idle;
        send_anew(c, (uint64_t)idle.due_ns);
        idle.due_ns += 1e9 / options.rate;
    }
}

static void wait_for_due(struct connection *c)
{
    c->next_idle = NULL;
    if (idle.first)
        idle.last->next_idle = c;
    else
        idle.first = c;
    idle.last = c;
}

static void count_error(int code)
{
    if (!totals.errors++)
        totals.first_error_code = code;
}

static void check(const struct connection *c)
{
    uint32_t expected = big_endian_32(request.bytes + CORRELATION_ID_AT_REQUEST);
    uint32_t id = big_endian_32(c->head + CORRELATION_ID_AT_RESPONSE);
    if (id != expected)
        fail("a response has correlation id %u, expected %u", id, expected);
    if (options.error_at >= 0) {
        if (c->received < (size_t)options.error_at + 2)
            fail("a response of %zu bytes has no error code at %d", c->received, options.error_at);
        int code = (int16_t)(c->head[options.error_at] << 8 | c->head[options.error_at + 1]);
        if (code) {
            count_error(code);
            return;
        }
    }
    if (c->received < options.min_response) {
        if (!totals.errors)
            fprintf(stderr, "load: a response is %zu bytes, expected at least %zu\n", c->received,
                    options.min_response);
        count_error(0);
    }
}

static void make_tls_context(void)
{
    tls_context = SSL_CTX_new(TLS_client_method());
    if (!tls_context || !SSL_CTX_load_verify_locations(tls_context, options.tls_ca, NULL))
        fail("%s has no certificates", options.tls_ca);
    SSL_CTX_set_verify(tls_context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(tls_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Otherwise it is two system calls for each record. */
    SSL_CTX_set_read_ahead(tls_context, 1);
    SSL_CTX_set_default_read_buffer_len(tls_context, SCRATCH_BYTES);
}

static void shake_hands(struct connection *c)
{
    c->tls = SSL_new(tls_context);
    if (!c->tls || !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->tls), options.host) || !SSL_set_fd(c->tls, c->fd) ||
        SSL_connect(c->tls) != 1)
        fail("TLS with %s:%d: %s", options.host, options.port, ERR_reason_error_string(ERR_get_error()));
}

/* ---- logins: the socket still blocks ------------------------------------------------------------------------- */

static void put_all(struct connection *c, const unsigned char *from, size_t size)
{
    for (ssize_t n; size; from += n, size -= (size_t)n)
        if ((n = put(c, from, size)) <= 0)
            fail("send: %s", strerror(errno));
}

static void get_all(struct connection *c, unsigned char *into, size_t size)
{
    for (ssize_t n; size; into += n, size -= (size_t)n)
        if ((n = get(c, into, size)) <= 0)
            fail("the broker closed a connection that logs in");
}

static unsigned char *add_16(unsigned char *at, int value)
{
    *at++ = (unsigned char)(value >> 8);
    *at++ = (unsigned char)value;
    return at;
}

static unsigned char *add_32(unsigned char *at, size_t value)
{
    return add_16(add_16(at, (int)(value >> 16)), (int)(value & 0xffff));
}

/* One request without a client id; what follows the error code of its response ends with a zero byte. */
static void ask(struct connection *c, int key, int version, size_t size_bytes, const char *text, int length,
                unsigned char *answer)
{
    unsigned char frame[64 + SCRAM_TEXT_BYTES], *at = add_32(frame, 10 + size_bytes + (size_t)length);
    at = add_16(add_32(add_16(add_16(at, key), version), 0), -1);
    at = size_bytes == 2 ? add_16(at, length) : add_32(at, (size_t)length);
    memcpy(at, text, (size_t)length);
    put_all(c, frame, (size_t)(at - frame) + (size_t)length);
    unsigned char head[10];
    get_all(c, head, sizeof head);
    size_t left = big_endian_32(head) - 6;
    if (left >= SCRAM_TEXT_BYTES)
        fail("a response of %zu bytes to a login", left);
    get_all(c, answer, left);
    answer[left] = 0;
    int code = (int16_t)(head[8] << 8 | head[9]);
    if (code)
        fail("the login of %s is refused with error code %d", options.user, code);
}

/* After SaslAuthenticate's error code: a text, which is null without an error, and the mechanism's bytes. */
static void log_in(struct connection *c)
{
    static const char mechanism[] = "SCRAM-SHA-256";
    struct scram scram = {.user = options.user, .password = options.password};
    char text[SCRAM_TEXT_BYTES];
    unsigned char answer[SCRAM_TEXT_BYTES];
    ask(c, SASL_HANDSHAKE, 1, 2, mechanism, (int)strlen(mechanism), answer);
    ask(c, SASL_AUTHENTICATE, 0, 4, text, scram_first(&scram, text), answer);
    int length = scram_final(&scram, (const char *)answer + 2 + 4, text);
    if (length < 0)
        fail("the broker's first message is no SCRAM");
    ask(c, SASL_AUTHENTICATE, 0, 4, text, length, answer);
}

static void open_connection(struct connection *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1)
        fail("%s is not an IPv4 address", options.host);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("cannot connect to %s:%d: %s", options.host, options.port, strerror(errno));
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (tls_context)
        shake_hands(c);
    if (options.user)
        log_in(c);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->wants_write = false;
    watch(c, EPOLLIN, EPOLL_CTL_ADD);
}

static void reset_connection(struct connection *c)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    SSL_free(c->tls);
    c->tls = NULL;
    close(c->fd);
}

static void finish(struct connection *c)
{
    uint64_t now = now_ns(), ns = now - c->started_ns;
    check(c);
    totals.responses++;
    totals.histogram[bucket_of(ns)]++;
    if (ns > totals.longest_ns)
        totals.longest_ns = ns;
    if (options.reconnect) {
        reset_connection(c);
        open_connection(c);
    }
    if (options.rate)
        wait_for_due(c);
    else
        send_anew(c, now);
}

/* The first bytes of a response are kept, what follows is not. */
static ssize_t receive_some(struct connection *c)
{
    if (c->received < HEAD_BYTES) {
        ssize_t n = get(c, scratch, SCRATCH_BYTES);
        if (n > 0) {
            size_t room = HEAD_BYTES - c->received;
            memcpy(c->head + c->received, scratch, (size_t)n < room ? (size_t)n : room);
        }
        return n;
    }
    return options.discard ? recv(c->fd, scratch, 1 << 30, MSG_TRUNC) : get(c, scratch, SCRATCH_BYTES);
}

/* False: there is nothing more now. */
static bool receive(struct connection *c)
{
    ssize_t n = receive_some(c);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    if (n < 0)
        fail("recv: %s", strerror(errno));
    if (n == 0)
        fail("the broker closed a connection");
    c->received += (size_t)n;
    totals.bytes_in += (uint64_t)n;
    if (c->received < CORRELATION_ID_AT_RESPONSE + 4)
        return true;
    size_t whole = (size_t)big_endian_32(c->head) + 4;
    if (c->received > whole)
        fail("%zu bytes came where the response has %zu", c->received, whole);
    if (c->received == whole) {
        if (c->sent < request.size)
            fail("a response came before its request was sent");
        finish(c);
    }
    return true;
}

/* ---- the run ------------------------------------------------------------------------------------------------- */

static uint64_t run_for(double seconds)
{
    struct epoll_event events[EVENTS];
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), now = start;
    while (now < end) {
        if (options.rate)
            send_due(now);
        uint64_t until = options.rate && idle.first && idle.due_ns < (double)end ? (uint64_t)idle.due_ns + 1 : end;
        uint64_t wait_ns = until > now ? until - now : 0;
        struct timespec timeout = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
        int ready = epoll_pwait2(poller, events, EVENTS, &timeout, NULL);
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                send_rest(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                /* The poller does not report what OpenSSL has read ahead. */
                while (receive(c) && c->tls && SSL_has_pending(c->tls))
                    ;
        }
        now = now_ns();
    }
    return now - start;
}

static void report(uint64_t elapsed_ns)
{
    double seconds = (double)elapsed_ns / 1e9, rate = (double)totals.responses / seconds;
    double in = (double)totals.bytes_in / seconds / 1e6, out = (double)totals.bytes_out / seconds / 1e6;
    double longest = (double)totals.longest_ns / 1e3;
    const char *format =
        options.json
            ? "{\"connections\": %d, \"requests\": %lu, \"seconds\": %.6f, \"rate\": %.1f, \"p50_us\": %.1f, "
              "\"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"errors\": %lu, \"error_code\": %d, "
              "\"in_mb_s\": %.2f, \"out_mb_s\": %.2f}\n"
            : "%4d connections: %lu requests in %.1f s, %.0f req/s, p50 %.0f p99 %.0f p99.9 %.0f max %.0f us, "
              "%lu errors (first %d), in %.1f out %.1f MB/s\n";
    printf(format, options.connections, totals.responses, seconds, rate, percentile_us(.5), percentile_us(.99),
           percentile_us(.999), longest, totals.errors, totals.first_error_code, in, out);
    fflush(stdout);
}

static void read_request(void)
{
    FILE *file = fopen(options.request_path, "rb");
    struct stat status;
    if (!file || fstat(fileno(file), &status) < 0)
        fail("cannot read %s: %s", options.request_path, strerror(errno));
    request.size = (size_t)status.st_size;
    request.bytes = malloc(request.size);
    if (!request.bytes || fread(request.bytes, 1, request.size, file) != request.size)
        fail("cannot read %s", options.request_path);
    fclose(file);
    if (request.size < CORRELATION_ID_AT_REQUEST + 4 || big_endian_32(request.bytes) + 4 != request.size)
        fail("%s is not one Kafka request with its size in front", options.request_path);
    if (options.partition_at < 0 || (size_t)options.partition_at + 4 > request.size)
        fail("--partition-at %d lies outside of the request", options.partition_at);
    if (options.digits_at < 0 || (size_t)options.digits_at + DIGITS > request.size)
        fail("--digits-at %d lies outside of the request", options.digits_at);
}

static void __attribute__((noreturn)) usage(void)
{
    fputs("usage: load --port PORT --request FILE [--host ADDRESS] [--connections N] [--seconds S] [--warmup S]\n"
          "            [--error-at OFFSET] [--min-response BYTES] [--discard] [--reconnect] [--json]\n"
          "            [--rate REQUESTS_PER_S] [--partitions N --partition-at OFFSET | --digits-at OFFSET]\n"
          "            [--tls-ca FILE] [--user NAME --password TEXT]\n", stderr);
    exit(1);
}

static void read_options(int count, char **values)
{
    static const struct option known[] = {
        {"host", 1, 0, 'h'},     {"port", 1, 0, 'p'},     {"connections", 1, 0, 'c'},  {"seconds", 1, 0, 's'},
        {"warmup", 1, 0, 'w'},   {"request", 1, 0, 'r'},  {"error-at", 1, 0, 'e'},     {"min-response", 1, 0, 'm'},
        {"discard", 0, 0, 'd'},  {"reconnect", 0, 0, 'n'}, {"json", 0, 0, 'j'},
        {"partitions", 1, 0, 'P'}, {"partition-at", 1, 0, 'a'},
        {"digits-at", 1, 0, 'D'},
        {"rate", 1, 0, 'R'},       {"tls-ca", 1, 0, 't'},   {"user", 1, 0, 'u'},
        {"password", 1, 0, 'x'},   {0},
    };
    for (int option; (option = getopt_long(count, values, "", known, NULL)) != -1;)
        switch (option) {
        case 'h': options.host = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'w': options.warmup = atof(optarg); break;
        case 'r': options.request_path = optarg; break;
        case 'e': options.error_at = atoi(optarg); break;
        case 'm': options.min_response = strtoull(optarg, NULL, 10); break;
        case 'd': options.discard = true; break;
        case 'n': options.reconnect = true; break;
        case 'j': options.json = true; break;
        case 'P': options.partitions = atoi(optarg); break;
        case 'a': options.partition_at = atoi(optarg); break;
        case 'D': options.digits_at = atoi(optarg); break;
        case 'R': options.rate = atof(optarg); break;
        case 't': options.tls_ca = optarg; break;
        case 'u': options.user = optarg; break;
        case 'x': options.password = optarg; break;
        default: usage();
        }
    if (!options.request_path || options.port < 1 || options.port > 65535 || options.connections < 1 ||
        options.seconds <= 0 || options.partitions < 0 || options.rate < 0 || (options.discard && options.tls_ca) ||
        !options.user != !options.password || optind != count)
        usage();
    if (options.error_at > HEAD_BYTES - 2)
        fail("--error-at %d lies behind the %d bytes that are looked at", options.error_at, HEAD_BYTES);
}

int main(int count, char **values)
{
    read_options(count, values);
    read_request();
    if (options.tls_ca)
        make_tls_context();
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct connection *connections = calloc((size_t)options.connections, sizeof *connections);
    if (poller < 0 || !connections)
        fail("cannot set up: %s", strerror(errno));
    for (int i = 0; i < options.connections; i++)
        open_connection(&connections[i]);
    idle.due_ns = (double)now_ns();
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = 0; i < options.connections; i++)
        if (options.rate)
            wait_for_due(&connections[i]);
        else
            send_anew(&connections[i], now_ns());
    if (options.warmup > 0) {
        run_for(options.warmup);
        if (totals.errors) {
            report((uint64_t)(options.warmup * 1e9));
            return 2;
        }
        memset(&totals, 0, sizeof totals);
    }
    puts("measuring");
    fflush(stdout);
    uint64_t took_ns = run_for(options.seconds);
    /* A short run goes on until something is answered: a busy machine may not have let the broker run yet. */
    while (!totals.responses && took_ns < PATIENCE_NS)
        took_ns += run_for(options.seconds);
    report(took_ns);
    if (!totals.responses)
        fail("no response within %.1f s", (double)took_ns / 1e9);
    return totals.errors ? 2 : 0;
}
