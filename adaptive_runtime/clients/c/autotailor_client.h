/* A client of `autotailor-runtime serve --socket PATH`, for programs on the same device. C99 and POSIX, nothing else.
 *
 *     cc -std=c99 -c autotailor_client.c
 *
 * Threads: a client is used by one thread at a time, by whatever lock of the caller's. Clients do not share anything, so each
 * thread may have one of its own. A process that forks uses a client on one side alone.
 */
#ifndef AUTOTAILOR_CLIENT_H
#define AUTOTAILOR_CLIENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call; numbers as those of HTTP. `autotailor_last_error` says it in one line. */
typedef enum autotailor_status {
    AUTOTAILOR_OK = 0,
    AUTOTAILOR_BAD_REQUEST = 400, /* the request, or an argument, is wrong; it would be again */
    AUTOTAILOR_BUSY = 429,        /* the queue of the service is full; `autotailor_retry_after_ms` */
    AUTOTAILOR_FAILED = 500,      /* the service, or this machine (no memory), failed */
    AUTOTAILOR_GONE = 503,        /* no connection any more, or no SubNet that works; close and connect again */
    AUTOTAILOR_LATE = 504         /* no answer by the deadline of the request, or within the client's timeout */
} autotailor_status;

typedef struct autotailor_client autotailor_client;

/* Images, or texts as numbers of words, as the bundle's preparation says. One of `values` and `tokens` is NULL. */
typedef struct autotailor_request {
    const float *values;   /* of images: shape[0] * shape[1] * shape[2] * shape[3] values, in rows */
    uint32_t shape[4];     /* samples, channels, height, width; of texts: samples, words, 1, 1 */
    double deadline_ms;    /* from the arrival of the request at the service; 0: the service's own */
    const char *subnet;    /* digest of the SubNet that shall answer; NULL: the one that serves */
    const int64_t *tokens; /* of texts: shape[0] * shape[1] numbers of words, in rows */
} autotailor_request;

/* What a request got. It belongs to the caller, until `autotailor_free`, also after its client is closed. */
typedef struct autotailor_answer {
    uint32_t samples;
    uint32_t classes;
    const float *logits;        /* samples * classes values, in rows */
    const char *const *subnets; /* of each sample: digest of the SubNet that answered */
    const char *const *exits;   /* of each sample: name of the exit */
    double latency_ms;          /* in the model */
    double waited_ms;           /* in the service, before that */
    double late_ms;             /* after the deadline; 0: in time */
    int late;                   /* 1: after the deadline; 0: in time */
    void *memory;               /* what `autotailor_free` frees */
} autotailor_answer;

/* Connect to the socket at a path. timeout_ms: the longest that a call waits for the service; 0: without limit.
 *
 * *client is made also where this fails, for `autotailor_last_error`, unless there is no memory: then it is NULL. Close it. */
autotailor_status autotailor_connect(const char *path, double timeout_ms, autotailor_client **client);

/* Ask and wait. *answer is empty unless this gives AUTOTAILOR_OK; it may be freed either way. */
autotailor_status autotailor_infer(
    autotailor_client *client, const autotailor_request *request, autotailor_answer *answer);

/* Ask without waiting; several requests may be on their way (the service reads 64 of a client). *id: for
 * `autotailor_wait`, once for each. The values are sent when this returns, and may be changed. */
autotailor_status autotailor_submit(autotailor_client *client, const autotailor_request *request, uint64_t *id);

/* The answer to a request, in any order. After AUTOTAILOR_LATE by the client's own timeout, it may be waited for again. */
autotailor_status autotailor_wait(autotailor_client *client, uint64_t id, autotailor_answer *answer);

/* Free what an answer has; it is empty then. NULL and an empty answer: nothing happens. */
void autotailor_free(autotailor_answer *answer);

/* End the connection, and free the client. Requests that have no answer are given up. NULL: nothing happens. */
void autotailor_close(autotailor_client *client);

/* Why the latest call that failed did, in one line. It belongs to the client, until the next call. */
const char *autotailor_last_error(const autotailor_client *client);

/* After AUTOTAILOR_BUSY: when there may be room again [ms]. */
double autotailor_retry_after_ms(const autotailor_client *client);

#ifdef __cplusplus
}
#endif

#endif
