/* See autotailor_client.h. Frames are those of docs/runtime_service.md: a prefix of 24 bytes, fixed fields, and behind them
 * values or text; all little-endian. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "autotailor_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    VERSION = 1,
    REQUEST = 1,
    ANSWER = 2,
    REFUSAL = 3,
    PREFIX_BYTES = 24,
    REQUEST_BYTES = 88,
    ANSWER_BYTES = 36,
    REFUSAL_BYTES = 8,
    SUBNET_BYTES = 64,
    RETRY_MS = 5,
    MOST_ANSWER_BYTES = 64 << 20
};

static const unsigned char MAGIC[4] = {'A', 'T', 'L', 'S'};

/* A request whose answer has not been taken. content: of its answer, once that has come. */
struct pending {
    uint64_t id;
    uint32_t samples;
    int unwanted; /* nobody waits for it any more */
    int kind;
    unsigned char *content;
    size_t content_bytes;
    struct pending *next;
};

struct autotailor_client {
    int fd;
    double timeout_ms;
    uint64_t last_id;
    struct pending *pending;
    unsigned char prefix[PREFIX_BYTES]; /* of the frame that comes */
    unsigned char *content;             /* behind it; NULL until the prefix is whole */
    size_t content_bytes;
    size_t have_bytes; /* of prefix and content */
    autotailor_status lost; /* why there is no connection; AUTOTAILOR_OK: there is one */
    double retry_after_ms;
    char error[512];
};

/* -- bytes ---------------------------------------------------------------------------------------------------------- */

static void put(unsigned char *to, uint64_t value, int bytes) {
    for (int at = 0; at < bytes; at++) {
        to[at] = (unsigned char)(value >> (8 * at));
    }
}

static uint64_t get(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int at = 0; at < bytes; at++) {
        value |= (uint64_t)from[at] << (8 * at);
    }
    return value;
}

static void put_double(unsigned char *to, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(to, bits, 8);
}

static double get_double(const unsigned char *from) {
    uint64_t bits = get(from, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int is_little_endian(void) {
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

/* -- errors and time ------------------------------------------------------------------------------------------------ */

static autotailor_status fail(autotailor_client *client, autotailor_status status, const char *line, const char *more) {
    snprintf(client->error, sizeof client->error, "%s%s", line, more);
    return status;
}

/* The connection is of no use any more: every later call says so, too. */
static autotailor_status lose(autotailor_client *client, autotailor_status status, const char *line, const char *more) {
    client->lost = status;
    return fail(client, status, line, more);
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* When a call that begins now has waited long enough; below 0: never. */
static double until_ms(const autotailor_client *client) {
    return client->timeout_ms > 0 ? now_ms() + client->timeout_ms : -1.0;
}

/* What poll gives: above 0: ready; 0: the time is over; below: an error. */
static int ready(autotailor_client *client, short events, double until) {
    for (;;) {
        struct pollfd one = {client->fd, events, 0};
        double left = until < 0 ? -1.0 : until - now_ms();
        int wait_ms = until < 0 ? -1 : left <= 0 ? 0 : left > 1e9 ? 1000000000 : (int)left + 1;
        int found = poll(&one, 1, wait_ms);
        if (found > 0) {
            return one.revents;
        }
        if (found == 0 || errno != EINTR) {
            return found;
        }
    }
}

/* -- frames that come ----------------------------------------------------------------------------------------------- */

static struct pending **place_of(autotailor_client *client, uint64_t id) {
    struct pending **place = &client->pending;
    while (*place != NULL && (*place)->id != id) {
        place = &(*place)->next;
    }
    return place;
}

static void forget(struct pending **place) {
    struct pending *gone = *place;
    *place = gone->next;
    free(gone->content);
    free(gone);
}

static autotailor_status status_of(uint32_t number) {
    switch (number) {
    case AUTOTAILOR_BUSY:
    case AUTOTAILOR_FAILED:
    case AUTOTAILOR_GONE:
    case AUTOTAILOR_LATE:
        return (autotailor_status)number;
    default:
        return number < 500 ? AUTOTAILOR_BAD_REQUEST : AUTOTAILOR_FAILED;
    }
}

/* The status and the line of a refusal. content: with a zero byte behind it. */
static autotailor_status refusal(autotailor_client *client, const unsigned char *content) {
    client->retry_after_ms = (double)get(content + 4, 4);
    return fail(client, status_of((uint32_t)get(content, 4)), (const char *)content + REFUSAL_BYTES, "");
}

/* The prefix is whole: check it before memory is taken for what follows. */
static autotailor_status begin_content(autotailor_client *client) {
    const unsigned char *prefix = client->prefix;
    uint64_t kind = get(prefix + 6, 2), id = get(prefix + 8, 8), bytes = get(prefix + 16, 8);
    uint64_t least = kind == ANSWER ? ANSWER_BYTES : REFUSAL_BYTES;
    if (memcmp(prefix, MAGIC, sizeof MAGIC) != 0 || get(prefix + 4, 2) != VERSION) {
        return lose(client, AUTOTAILOR_GONE, "what comes is no frame of version 1 of a service", "");
    }
    if ((kind != ANSWER && kind != REFUSAL) || bytes < least || bytes > MOST_ANSWER_BYTES) {
        return lose(client, AUTOTAILOR_GONE, "the service sends a frame of an unknown kind or size", "");
    }
    if (*place_of(client, id) == NULL && !(id == 0 && kind == REFUSAL)) {
        return lose(client, AUTOTAILOR_GONE, "the service answers a request that was not sent", "");
    }
    client->content_bytes = (size_t)bytes;
    client->content = (unsigned char *)malloc((size_t)bytes + 1);
    return client->content ? AUTOTAILOR_OK : lose(client, AUTOTAILOR_FAILED, "no memory for an answer", "");
}

/* The frame is whole: keep it for whoever waits for it. */
static autotailor_status end_content(autotailor_client *client) {
    uint64_t id = get(client->prefix + 8, 8);
    unsigned char *content = client->content;
    content[client->content_bytes] = 0;
    client->content = NULL;
    client->have_bytes = 0;
    if (id == 0) { /* the connection itself is refused */
        client->lost = refusal(client, content);
        free(content);
        return client->lost;
    }
    struct pending **place = place_of(client, id), *own = *place;
    if (own->content != NULL) {
        free(content);
        return lose(client, AUTOTAILOR_GONE, "the service answers a request twice", "");
    }
    own->content = content;
    own->content_bytes = client->content_bytes;
    own->kind = (int)get(client->prefix + 6, 2);
    if (own->unwanted) {
        forget(place);
    }
    return AUTOTAILOR_OK;
}

/* Take what has come, at most up to the end of a frame. Never waits. */
static autotailor_status take(autotailor_client *client) {
    for (;;) {
        size_t have = client->have_bytes;
        int in_prefix = have < PREFIX_BYTES;
        unsigned char *to = in_prefix ? client->prefix + have : client->content + (have - PREFIX_BYTES);
        size_t want = in_prefix ? PREFIX_BYTES - have : client->content_bytes + PREFIX_BYTES - have;
        ssize_t got = recv(client->fd, to, want, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return AUTOTAILOR_OK;
        }
        if (got <= 0) {
            const char *why = got < 0 ? strerror(errno) : "closed";
            return lose(client, AUTOTAILOR_GONE, "the service has gone: the connection is ", why);
        }
        client->have_bytes += (size_t)got;
        if (in_prefix && client->have_bytes == PREFIX_BYTES) {
            autotailor_status status = begin_content(client);
            if (status != AUTOTAILOR_OK) {
                return status;
            }
        } else if (!in_prefix && (size_t)got == want) {
            return end_content(client);
        }
    }
}

/* -- requests ------------------------------------------------------------------------------------------------------- */

/* Bytes of the values of a request; 0: its shape or an argument is wrong, and the error says so. */
static size_t value_bytes(autotailor_client *client, const autotailor_request *request) {
    const uint64_t value = request->tokens != NULL ? sizeof(int64_t) : sizeof(float);
    uint64_t count = 1;
    if ((request->values == NULL) == (request->tokens == NULL)) {
        const char *both = request->values == NULL ? "NULL" : "given, and tokens, too";
        fail(client, AUTOTAILOR_BAD_REQUEST, "values: ", both);
        return 0;
    }
    if (request->subnet != NULL && (!*request->subnet || strlen(request->subnet) > SUBNET_BYTES)) {
        fail(client, AUTOTAILOR_BAD_REQUEST, "subnet: no digest; allowed: 1 to 64 characters, or NULL", "");
        return 0;
    }
    for (int at = 0; at < 4; at++) {
        count = request->shape[at] > UINT32_MAX / value / count ? 0 : count * request->shape[at];
        if (count == 0) {
            fail(client, AUTOTAILOR_BAD_REQUEST, "shape: a size of 0, or more than 4 GiB", "");
            return 0;
        }
    }
    return (size_t)(count * value);
}

/* Send all of two parts. What comes meanwhile is taken: a service that waits for us to take answers would take no request. */
static autotailor_status send_parts(autotailor_client *client, struct iovec parts[2]) {
    double until = until_ms(client);
    int at = 0;
    while (at < 2) {
        struct msghdr message;
        memset(&message, 0, sizeof message);
        message.msg_iov = parts + at;
        message.msg_iovlen = (size_t)(2 - at);
        ssize_t sent = sendmsg(client->fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            for (size_t left = (size_t)sent; at < 2; at++) {
                size_t part = left < parts[at].iov_len ? left : parts[at].iov_len;
                parts[at].iov_base = (unsigned char *)parts[at].iov_base + part;
                parts[at].iov_len -= part;
                left -= part;
                if (parts[at].iov_len > 0) {
                    break;
                }
            }
            continue;
        }
        if (errno == EINTR) {
            continue;
        }
        int blocked = errno == EAGAIN || errno == EWOULDBLOCK;
        int found = blocked ? ready(client, POLLIN | POLLOUT, until) : POLLIN;
        if (found == 0) {
            return lose(client, AUTOTAILOR_GONE, "the service takes no request within the timeout", "");
        }
        while (!blocked && client->lost == AUTOTAILOR_OK) { /* it has gone; maybe it has said why */
            if (take(client) == AUTOTAILOR_OK && ready(client, POLLIN, now_ms()) <= 0) {
                lose(client, AUTOTAILOR_GONE, "the service has gone", "");
            }
        }
        if (found < 0) {
            lose(client, AUTOTAILOR_GONE, "the service has gone", "");
        } else if (blocked && (found & ~POLLOUT)) {
            take(client); /* which says why, where the connection is lost */
        }
        if (client->lost != AUTOTAILOR_OK) {
            return client->lost;
        }
    }
    return AUTOTAILOR_OK;
}

autotailor_status autotailor_submit(autotailor_client *client, const autotailor_request *request, uint64_t *id) {
    *id = 0;
    if (client->lost != AUTOTAILOR_OK) {
        return client->lost;
    }
    size_t bytes = value_bytes(client, request);
    if (bytes == 0) {
        return AUTOTAILOR_BAD_REQUEST;
    }
    struct pending *own = (struct pending *)calloc(1, sizeof *own);
    if (own == NULL) {
        return fail(client, AUTOTAILOR_FAILED, "no memory for a request", "");
    }
    own->id = ++client->last_id;
    own->samples = request->shape[0];
    own->next = client->pending;
    client->pending = own;

    unsigned char head[PREFIX_BYTES + REQUEST_BYTES] = {0}, *fields = head + PREFIX_BYTES;
    memcpy(head, MAGIC, sizeof MAGIC);
    put(head + 4, VERSION, 2);
    put(head + 6, REQUEST, 2);
    put(head + 8, own->id, 8);
    put(head + 16, REQUEST_BYTES + (uint64_t)bytes, 8);
    put_double(fields, request->deadline_ms);
    for (int at = 0; at < 4; at++) {
        put(fields + 8 + 4 * at, request->shape[at], 4);
    }
    if (request->subnet != NULL) {
        memcpy(fields + 24, request->subnet, strlen(request->subnet));
    }
    const void *values = request->tokens != NULL ? (const void *)request->tokens : (const void *)request->values;
    struct iovec parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)values, bytes}};
    uint64_t number = own->id;
    autotailor_status status = send_parts(client, parts);
    if (status == AUTOTAILOR_OK) {
        *id = number;
    }
    return status;
}

/* The answer in a whole frame, whose content it takes over. It is checked before anything points into it. */
static autotailor_status parse(autotailor_client *client, struct pending *own, autotailor_answer *answer) {
    unsigned char *content = own->content;
    uint64_t samples = get(content + 24, 4), classes = get(content + 28, 4), text = get(content + 32, 4);
    uint64_t value_count = samples * classes; /* of 32 bits each: no overflow */
    uint64_t behind = own->content_bytes - ANSWER_BYTES;
    if (samples != own->samples || text > behind || value_count > behind / sizeof(float) ||
        value_count * sizeof(float) + text != behind) {
        return lose(client, AUTOTAILOR_GONE, "the service sends an answer of another size than it says", "");
    }
    const char **names = (const char **)malloc(2 * (size_t)samples * sizeof *names);
    if (names == NULL) {
        return fail(client, AUTOTAILOR_FAILED, "no memory for an answer", "");
    }
    const char *at = (const char *)content + own->content_bytes - text, *end = at + text;
    for (size_t name = 0; name < 2 * (size_t)samples; name++) {
        const char *zero = at < end ? (const char *)memchr(at, 0, (size_t)(end - at)) : NULL;
        if (zero == NULL) {
            free((void *)names);
            return lose(client, AUTOTAILOR_GONE, "the service sends an answer without names", "");
        }
        names[name % 2 * samples + name / 2] = at;
        at = zero + 1;
    }
    answer->samples = (uint32_t)samples;
    answer->classes = (uint32_t)classes;
    answer->logits = (const float *)(void *)(content + ANSWER_BYTES);
    answer->subnets = names;
    answer->exits = names + samples;
    answer->latency_ms = get_double(content);
    answer->waited_ms = get_double(content + 8);
    answer->late_ms = get_double(content + 16);
    answer->late = answer->late_ms > 0;
    answer->memory = content;
    own->content = NULL;
    return AUTOTAILOR_OK;
}

autotailor_status autotailor_wait(autotailor_client *client, uint64_t id, autotailor_answer *answer) {
    memset(answer, 0, sizeof *answer);
    double until = until_ms(client);
    struct pending **place;
    for (;;) {
        place = place_of(client, id);
        if (*place == NULL) {
            return fail(client, AUTOTAILOR_BAD_REQUEST, "id: no request waits for an answer by this number", "");
        }
        if ((*place)->content != NULL) {
            break;
        }
        if (client->lost != AUTOTAILOR_OK) {
            return client->lost;
        }
        int found = ready(client, POLLIN, until);
        if (found == 0) {
            return fail(client, AUTOTAILOR_LATE, "no answer within the client's timeout", "");
        }
        if (found < 0) {
            return lose(client, AUTOTAILOR_GONE, "the connection cannot be waited for: ", strerror(errno));
        }
        take(client);
    }
    int refused = (*place)->kind == REFUSAL;
    autotailor_status status = refused ? refusal(client, (*place)->content) : parse(client, *place, answer);
    forget(place);
    return status;
}

autotailor_status autotailor_infer(
    autotailor_client *client, const autotailor_request *request, autotailor_answer *answer) {
    uint64_t id;
    memset(answer, 0, sizeof *answer);
    autotailor_status status = autotailor_submit(client, request, &id);
    if (status != AUTOTAILOR_OK) {
        return status;
    }
    status = autotailor_wait(client, id, answer);
    struct pending *left = *place_of(client, id);
    if (left != NULL) { /* the time is over: nobody knows its number */
        left->unwanted = 1;
    }
    return status;
}

void autotailor_free(autotailor_answer *answer) {
    if (answer != NULL) {
        free((void *)(uintptr_t)answer->subnets);
        free(answer->memory);
        memset(answer, 0, sizeof *answer);
    }
}

/* -- connections ---------------------------------------------------------------------------------------------------- */

static autotailor_status open_socket(autotailor_client *client, const char *path) {
    struct sockaddr_un address;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (path == NULL || !*path || strlen(path) >= sizeof address.sun_path) {
        return lose(client, AUTOTAILOR_BAD_REQUEST, "path: empty, or too long for a socket", "");
    }
    strcpy(address.sun_path, path);
    client->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (client->fd < 0 || fcntl(client->fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(client->fd, F_SETFL, O_NONBLOCK) < 0) {
        return lose(client, AUTOTAILOR_FAILED, "no socket can be made: ", strerror(errno));
    }
    double until = until_ms(client);
    while (connect(client->fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        if (errno != EINTR && errno != EAGAIN) {
            return lose(client, AUTOTAILOR_GONE, "no service answers at the path: ", strerror(errno));
        }
        if (until >= 0 && now_ms() > until) {
            return lose(client, AUTOTAILOR_LATE, "the service takes no connection within the timeout", "");
        }
        poll(NULL, 0, RETRY_MS);
    }
    return AUTOTAILOR_OK;
}

autotailor_status autotailor_connect(const char *path, double timeout_ms, autotailor_client **client) {
    autotailor_client *made = (autotailor_client *)calloc(1, sizeof *made);
    *client = made;
    if (made == NULL) {
        return AUTOTAILOR_FAILED;
    }
    made->fd = -1;
    made->timeout_ms = timeout_ms;
    if (!is_little_endian()) {
        return lose(made, AUTOTAILOR_FAILED, "this machine is not little-endian", "");
    }
    if (!(timeout_ms >= 0)) {
        return lose(made, AUTOTAILOR_BAD_REQUEST, "timeout_ms: below 0; allowed: from 0 on", "");
    }
    return open_socket(made, path);
}

void autotailor_close(autotailor_client *client) {
    if (client == NULL) {
        return;
    }
    while (client->pending != NULL) {
        forget(&client->pending);
    }
    if (client->fd >= 0) {
        close(client->fd);
    }
    free(client->content);
    free(client);
}

const char *autotailor_last_error(const autotailor_client *client) {
    return client != NULL ? client->error : "no memory for a client";
}

double autotailor_retry_after_ms(const autotailor_client *client) {
    return client != NULL ? client->retry_after_ms : 0.0;
}
