/* Does what stdin says with the client of the local socket, and prints a line for each command:
 *
 *     connect PATH TIMEOUT_MS | infer SAMPLES DEADLINE_MS SUBNET | submit SAMPLES DEADLINE_MS SUBNET | wait ID | close
 *
 * Arguments: a file with float32 images, and their C, H, W; or one with texts of int64, and T, 1, 1, tokens. SUBNET '-': the
 * one that serves. Lines begin with the status; behind 0 stands the number of a request, or an answer: samples, classes, late,
 * SubNet and exit of the last sample, logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotailor_client.h"

static void print_answer(autotailor_client *client, autotailor_status status, autotailor_answer *answer) {
    if (status != AUTOTAILOR_OK) {
        printf("%d %s\n", (int)status, autotailor_last_error(client));
        autotailor_free(answer);
        return;
    }
    uint32_t last = answer->samples - 1;
    printf("0 %u %u %d ", answer->samples, answer->classes, answer->late);
    printf("%s %s", answer->subnets[last], answer->exits[last]);
    for (size_t at = 0; at < (size_t)answer->samples * answer->classes; at++) {
        printf(" %a", (double)answer->logits[at]);
    }
    printf("\n");
    autotailor_free(answer);
}

static void *read_values(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        exit(2);
    }
    long bytes = ftell(file);
    void *values = malloc((size_t)bytes);
    rewind(file);
    if (values == NULL || fread(values, 1, (size_t)bytes, file) != (size_t)bytes) {
        exit(2);
    }
    fclose(file);
    return values;
}

int main(int count, char **words) {
    if (count != 5 && (count != 6 || strcmp(words[5], "tokens") != 0)) {
        return 2;
    }
    char line[1024], path[512], subnet[512];
    void *values = read_values(words[1]);
    autotailor_client *client = NULL;
    autotailor_answer answer;
    memset(&answer, 0, sizeof answer);
    while (fgets(line, sizeof line, stdin) != NULL) {
        autotailor_request request;
        double number;
        unsigned long long id;
        uint64_t sent;
        memset(&request, 0, sizeof request);
        request.values = count == 5 ? (const float *)values : NULL;
        request.tokens = count == 6 ? (const int64_t *)values : NULL;
        for (int at = 1; at < 4; at++) {
            request.shape[at] = (uint32_t)strtoul(words[at + 1], NULL, 10);
        }
        if (sscanf(line, "connect %511s %lf", path, &number) == 2) {
            autotailor_status status = autotailor_connect(path, number, &client);
            printf("%d %s\n", (int)status, status ? autotailor_last_error(client) : "connected");
        } else if (sscanf(line, "infer %u %lf %511s", &request.shape[0], &request.deadline_ms, subnet) == 3) {
            request.subnet = strcmp(subnet, "-") == 0 ? NULL : subnet;
            print_answer(client, autotailor_infer(client, &request, &answer), &answer);
        } else if (sscanf(line, "submit %u %lf %511s", &request.shape[0], &request.deadline_ms, subnet) == 3) {
            request.subnet = strcmp(subnet, "-") == 0 ? NULL : subnet;
            autotailor_status status = autotailor_submit(client, &request, &sent);
            if (status == AUTOTAILOR_OK) {
                printf("0 %llu\n", (unsigned long long)sent);
            } else {
                printf("%d %s\n", (int)status, autotailor_last_error(client));
            }
        } else if (sscanf(line, "wait %llu", &id) == 1) {
            print_answer(client, autotailor_wait(client, id, &answer), &answer);
        } else if (strcmp(line, "close\n") == 0) {
            autotailor_close(client);
            client = NULL;
            printf("0 closed\n");
        } else {
            return 2;
        }
        fflush(stdout);
    }
    autotailor_close(client);
    free(values);
    return 0;
}
