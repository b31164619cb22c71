"""The message that hands a connection from an acceptor to a processor, with its socket (SCM_RIGHTS).

handover.py has the Python side. A mark is a message without a socket, with MARK as its listener. A processor
that has taken a mark has taken all connections that were sent before the mark.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

cdef packed struct Handover:
    uint64_t ticket             # of the ledger of connections
    uint16_t listener
    uint8_t address_bytes       # 4: IPv4, 16: IPv6, 0: a client on this host, by a Unix-domain socket
    uint8_t address[16]

cdef extern from *:
    """
    #include <string.h>
    #include <sys/socket.h>

    union handover_control {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    };

    static inline ssize_t handover_send(int channel, const void *message, size_t length, int fd)
    {
        union handover_control control;
        struct iovec bytes = {(void *)message, length};
        struct msghdr all = {.msg_iov = &bytes, .msg_iovlen = 1,
                             .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        memset(&control, 0, sizeof control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
        return sendmsg(channel, &all, MSG_DONTWAIT | MSG_NOSIGNAL);
    }

    static inline ssize_t handover_receive(int channel, void *message, size_t length, int *fd)
    {
        union handover_control control;
        struct iovec bytes = {message, length};
        struct msghdr all = {.msg_iov = &bytes, .msg_iovlen = 1,
                             .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(channel, &all, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        struct cmsghdr *header = n < 0 ? NULL : CMSG_FIRSTHDR(&all);
        *fd = -1;
        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(header), sizeof *fd);
        return n;
    }
    """
    # Either returns the bytes of the message, 0 if the other end is closed, -1 with errno. `handover_receive`
    # sets `fd` to -1 for a mark, and for a socket that this process has no descriptor left for.
    ssize_t handover_send(int channel, const void *message, size_t length, int fd) nogil
    ssize_t handover_receive(int channel, void *message, size_t length, int *fd) nogil
