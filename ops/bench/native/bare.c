/* A server that answers requests and does nothing else: what sockets alone cost the processes of a broker.
 *
 *     bare PORT RESPONSE_BYTES
 *
 * One thread. It reads what a socket has, and answers every whole request in it with RESPONSE_BYTES bytes: their size, the
 * request's correlation id, zeros. All answers of one read are one write. It prints "ready" when it listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 18,
    EVENTS = 256,
    DESCRIPTORS = 1 << 16,
    SIZE_BYTES = 4,
    CORRELATION_ID_AT_REQUEST = 8, /* size 4, api key 2, api version 2 */
    HEAD_BYTES = 12,
    CORRELATION_ID_AT_RESPONSE = 4,
    RESPONSE_BYTES_MAX = 1 << 16,
    ANSWERS_BYTES = 1 << 18,
};

/* What is still to come of the request that a socket is in, and what has come of its head. */
struct connection {
    size_t head_bytes, left;
    unsigned char head[HEAD_BYTES];
};

static struct connection connections[DESCRIPTORS];
static unsigned char input[READ_BYTES], answers[ANSWERS_BYTES];
static size_t response_bytes;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static size_t big_endian_32(const unsigned char *from)
{
    return (size_t)from[0] << 24 | (size_t)from[1] << 16 | (size_t)from[2] << 8 | from[3];
}

static void send_all(int fd, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(fd, answers + sent, size - sent, MSG_NOSIGNAL);
        if (n < 0)
            fail("send: %s", strerror(errno));
        sent += (size_t)n;
    }
}

/* Take `size` bytes of a connection; return the bytes of the answers to the requests that end in them. */
static size_t take(struct connection *c, const unsigned char *from, size_t size)
{
    size_t made = 0;
    while (size) {
        size_t part;
        if (c->head_bytes < HEAD_BYTES) {
            part = HEAD_BYTES - c->head_bytes < size ? HEAD_BYTES - c->head_bytes : size;
            memcpy(c->head + c->head_bytes, from, part);
            c->head_bytes += part;
            if (c->head_bytes == HEAD_BYTES)
                c->left = big_endian_32(c->head) + SIZE_BYTES - HEAD_BYTES;
        } else {
            part = c->left < size ? c->left : size;
            c->left -= part;
        }
        from += part;
        size -= part;
        if (c->head_bytes < HEAD_BYTES || c->left)
            continue;
        if (made + response_bytes > sizeof answers)
            fail("more than %zu bytes of answers to one read", sizeof answers);
        unsigned char *answer = answers + made;
        memset(answer, 0, response_bytes);
        for (int i = 0; i < SIZE_BYTES; i++)
            answer[i] = (unsigned char)((response_bytes - SIZE_BYTES) >> (8 * (SIZE_BYTES - 1 - i)));
        memcpy(answer + CORRELATION_ID_AT_RESPONSE, c->head + CORRELATION_ID_AT_REQUEST, SIZE_BYTES);
        made += response_bytes;
        c->head_bytes = 0;
    }
    return made;
}

static void serve(int epoll, int fd)
{
    ssize_t n = recv(fd, input, sizeof input, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
        close(fd);
        return;
    }
    size_t size = take(&connections[fd], input, (size_t)n);
    if (size)
        send_all(fd, size);
}

static void accept_one(int epoll, int listener)
{
    int on = 1, fd = accept(listener, NULL, NULL);
    if (fd < 0 || fd >= DESCRIPTORS)
        fail("accept: %s", fd < 0 ? strerror(errno) : "too many connections");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    memset(&connections[fd], 0, sizeof connections[fd]);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int listen_on(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, SOMAXCONN))
        fail("port %d: %s", port, strerror(errno));
    return listener;
}

int main(int count, char **values)
{
    if (count != 3)
        fail("usage: bare PORT RESPONSE_BYTES");
    response_bytes = strtoul(values[2], NULL, 10);
    if (response_bytes < CORRELATION_ID_AT_RESPONSE + SIZE_BYTES || response_bytes > RESPONSE_BYTES_MAX)
        fail("a response of %zu bytes", response_bytes);
    int listener = listen_on(atoi(values[1])), epoll = epoll_create1(0);
    struct epoll_event events[EVENTS] = {{.events = EPOLLIN, .data.fd = listener}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &events[0]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int found = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < found; i++)
            if (events[i].data.fd == listener)
                accept_one(epoll, listener);
            else
                serve(epoll, events[i].data.fd);
    }
}
