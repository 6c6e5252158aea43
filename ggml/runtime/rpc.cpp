// RPC servers. ggml aborts the process when a server is absent or speaks another protocol,
// so the first words are exchanged here before ggml is let near the endpoint.

#include "backends.hpp"
#include "error.hpp"
#include "log.hpp"

#include "ggml-rpc.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#ifndef MSG_NOSIGNAL
#    define MSG_NOSIGNAL 0
#endif

namespace ds {

constexpr int     RPC_TIMEOUT_MS = 5000;
constexpr uint8_t RPC_CMD_HELLO  = 14; // the one command that all protocol versions share
constexpr size_t  RPC_CAPS_SIZE  = 24;

struct socket_fd {
    explicit socket_fd(int fd) : fd(fd) {}
    ~socket_fd() { if (fd >= 0) { close(fd); } }

    socket_fd(const socket_fd &) = delete;
    socket_fd & operator=(const socket_fd &) = delete;

    int fd;
};

struct endpoint_t {
    std::string host;
    std::string port;
};

// host:port, as ggml reads it
static endpoint_t parse_endpoint(const char * endpoint) {
    const std::string text = endpoint;
    const size_t      colon = text.find(':');
    const std::string port  = colon == std::string::npos ? "" : text.substr(colon + 1);

    const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
    if (colon == 0 || !digits || std::stoi(port) < 1 || std::stoi(port) > 65535) {
        fail("RPC endpoint '%s' is not of the form host:port", endpoint);
    }
    return { text.substr(0, colon), port };
}

static bool wait_for(int fd, short events) {
    pollfd p = { fd, events, 0 };
    int    n;
    do {
        n = poll(&p, 1, RPC_TIMEOUT_MS);
    } while (n < 0 && errno == EINTR);
    return n == 1;
}

static int connect_to(const char * endpoint) {
    const endpoint_t ep = parse_endpoint(endpoint);

    addrinfo hints = {};
    hints.ai_family   = AF_INET; // all that ggml itself uses
    hints.ai_socktype = SOCK_STREAM;

    addrinfo * found = nullptr;
    if (const int rc = getaddrinfo(ep.host.c_str(), ep.port.c_str(), &hints, &found)) {
        fail("RPC server %s: %s", endpoint, gai_strerror(rc));
    }
    std::unique_ptr<addrinfo, void (*)(addrinfo *)> info(found, freeaddrinfo);

    socket_fd sock(socket(info->ai_family, info->ai_socktype, info->ai_protocol));
    if (sock.fd < 0) {
        fail("RPC server %s: %s", endpoint, strerror(errno));
    }
    fcntl(sock.fd, F_SETFL, fcntl(sock.fd, F_GETFL) | O_NONBLOCK);

    int err = connect(sock.fd, info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (err == EINPROGRESS) {
        if (!wait_for(sock.fd, POLLOUT)) {
            fail("RPC server %s does not answer", endpoint);
        }
        socklen_t size = sizeof(err);
        getsockopt(sock.fd, SOL_SOCKET, SO_ERROR, &err, &size);
    }
    if (err != 0) {
        fail("RPC server %s: %s", endpoint, strerror(err));
    }

    return std::exchange(sock.fd, -1);
}

static bool send_all(int fd, const void * data, size_t size) {
    const char * p = (const char *) data;
    while (size > 0) {
        const ssize_t n = send(fd, p, size, MSG_NOSIGNAL);
        if (n <= 0) {
            if (n < 0 && (errno == EAGAIN || errno == EINTR) && wait_for(fd, POLLOUT)) {
                continue;
            }
            return false;
        }
        p    += n;
        size -= n;
    }
    return true;
}

static bool recv_all(int fd, void * data, size_t size) {
    char * p = (char *) data;
    while (size > 0) {
        if (!wait_for(fd, POLLIN)) {
            return false;
        }
        const ssize_t n = recv(fd, p, size, 0);
        if (n <= 0) {
            if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
                continue;
            }
            return false;
        }
        p    += n;
        size -= n;
    }
    return true;
}

// request: command (1 byte), size (8 bytes), capabilities; response: size (8 bytes), version (4 bytes), capabilities
static void check_server(const char * endpoint) {
    socket_fd sock(connect_to(endpoint));

    uint8_t request[1 + 8 + RPC_CAPS_SIZE] = { RPC_CMD_HELLO };
    const uint64_t request_size = RPC_CAPS_SIZE;
    memcpy(request + 1, &request_size, sizeof(request_size));

    uint64_t size = 0;
    uint8_t  version[4 + RPC_CAPS_SIZE] = {};
    if (!send_all(sock.fd, request, sizeof(request)) ||
        !recv_all(sock.fd, &size, sizeof(size)) || size < 3 || size > sizeof(version) ||
        !recv_all(sock.fd, version, size)) {
        fail("RPC server %s does not answer the greeting: it is busy with another client, or no ggml RPC server", endpoint);
    }
    if (version[0] != RPC_PROTO_MAJOR_VERSION || version[1] > RPC_PROTO_MINOR_VERSION || size != sizeof(version)) {
        fail("RPC server %s speaks protocol %d.%d.%d, this build of ggml %d.%d.%d", endpoint,
             version[0], version[1], version[2],
             RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION, RPC_PROTO_PATCH_VERSION);
    }
}

void rpc_add(const char * endpoint) {
    log_init();

    static std::mutex            mutex;
    static std::set<std::string> added; // a server serves one client at a time: never greet our own connection
    std::lock_guard<std::mutex>  lock(mutex);
    if (added.count(endpoint) > 0) {
        return;
    }

    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    if (!rpc) {
        fail("this build of ggml has no RPC backend");
    }
    auto add_server = (ggml_backend_reg_t (*)(const char *)) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");
    if (!add_server) {
        fail("the RPC backend of this build of ggml cannot add servers");
    }

    check_server(endpoint);
    take_ggml_error();

    ggml_backend_reg_t reg = add_server(endpoint);
    if (!reg) {
        fail_ggml("RPC server %s offers no devices", endpoint);
    }
    ggml_backend_register(reg);
    added.insert(endpoint);
}

} // namespace ds
