// Before libc in each process (LD_PRELOAD): writes down whom a process looks up and connects to beyond this machine, and lets it do neither.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *what, const char *whom) {
    char line[512];
    const char *place = getenv("RECORDED");
    int file = place ? open(place, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    int size = snprintf(line, sizeof line, "%s %s\n", what, whom);
    if (file >= 0 && write(file, line, size) >= 0) close(file);
}

static int is_own(const char *name) {
    return !name || !*name || !strcmp(name, "localhost") || !strncmp(name, "127.", 4) || !strcmp(name, "::1") || !strcmp(name, "0.0.0.0");
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    char own[256] = "";
    if (!next) next = dlsym(RTLD_NEXT, "getaddrinfo");
    gethostname(own, sizeof own - 1);
    if (is_own(node) || !strcmp(node, own)) return next(node, service, hints, found);
    record("lookup", node);
    return EAI_AGAIN;
}

struct hostent *gethostbyname(const char *name) {
    static struct hostent *(*next)(const char *);
    if (!next) next = dlsym(RTLD_NEXT, "gethostbyname");
    if (is_own(name)) return next(name);
    record("lookup", name);
    return NULL;
}

int connect(int socket, const struct sockaddr *address, socklen_t size) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    char name[INET6_ADDRSTRLEN] = "127.";
    if (!next) next = dlsym(RTLD_NEXT, "connect");
    if (address->sa_family == AF_INET) inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, name, sizeof name);
    if (address->sa_family == AF_INET6) inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, name, sizeof name);
    if (is_own(name) || !strncmp(name, "::ffff:127.", 11)) return next(socket, address, size);
    record("connect", name);
    errno = ENETUNREACH;
    return -1;
}
