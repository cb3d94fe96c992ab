// Classifies images by a running service: classify SOCKET FILE CHANNELS HEIGHT WIDTH
// FILE: float32 values of one or more images, prepared as the bundle says. Prints of each its class, the logit, SubNet and exit.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "autotailor_client.h"

int main(int count, char **words) {
    if (count != 6) {
        std::fprintf(stderr, "usage: classify SOCKET FILE CHANNELS HEIGHT WIDTH\n");
        return 2;
    }
    autotailor_request request = {};
    std::size_t image = 1;
    for (int at = 1; at < 4; at++) {
        request.shape[at] = static_cast<uint32_t>(std::strtoul(words[at + 2], nullptr, 10));
        image *= request.shape[at];
    }
    std::ifstream file(words[2], std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<float> values(bytes.size() / sizeof(float));
    if (image == 0 || values.empty() || values.size() % image != 0) {
        std::fprintf(stderr, "classify: %s: has no whole images of this size\n", words[2]);
        return 2;
    }
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    request.values = values.data();
    request.shape[0] = static_cast<uint32_t>(values.size() / image);

    autotailor_client *made = nullptr;
    autotailor_status status = autotailor_connect(words[1], 10000.0, &made);
    const std::unique_ptr<autotailor_client, void (*)(autotailor_client *)> client(made, autotailor_close);
    autotailor_answer answer = {};
    if (status == AUTOTAILOR_OK) {
        status = autotailor_infer(client.get(), &request, &answer);
    }
    if (status != AUTOTAILOR_OK) {
        std::fprintf(stderr, "classify: %s (%d)\n", autotailor_last_error(client.get()), status);
        return 1;
    }
    for (uint32_t sample = 0; sample < answer.samples; sample++) {
        const float *logits = answer.logits + sample * answer.classes;
        const float *best = std::max_element(logits, logits + answer.classes);
        const long index = static_cast<long>(best - logits);
        std::printf("%ld %.9g %s %s\n", index, *best, answer.subnets[sample], answer.exits[sample]);
    }
    autotailor_free(&answer);
    return 0;
}
