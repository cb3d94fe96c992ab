// Classifies images by the Unix socket of a service: infer SOCKET FILE CHANNELS HEIGHT WIDTH
// FILE: float32 values of one or more images, prepared as the bundle says. Prints the class and the logit of each image,
// then the JSON of the answer with SubNet, exit and times. Open Inference Protocol v2 with binary tensors, little-endian.
//
//     c++ -std=c++11 infer.cpp -lcurl -o infer
#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

static const std::string LENGTH_HEADER = "inference-header-content-length:";  // bytes of the JSON

static std::size_t take_body(char *bytes, std::size_t, std::size_t count, void *body) {
    static_cast<std::string *>(body)->append(bytes, count);
    return count;
}

static std::size_t take_header(char *bytes, std::size_t, std::size_t count, void *json_bytes) {
    const std::string line(bytes, count);
    if (curl_strnequal(line.c_str(), LENGTH_HEADER.c_str(), LENGTH_HEADER.size())) {
        *static_cast<std::size_t *>(json_bytes) = std::strtoul(line.c_str() + LENGTH_HEADER.size(), nullptr, 10);
    }
    return count;
}

int main(int count, char **words) {
    if (count != 6) {
        std::fprintf(stderr, "usage: infer SOCKET FILE CHANNELS HEIGHT WIDTH\n");
        return 2;
    }
    std::ifstream file(words[2], std::ios::binary);
    const std::string values((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::size_t image_bytes = sizeof(float);
    std::string sizes;
    for (int at = 3; at < 6; at++) {
        image_bytes *= std::strtoul(words[at], nullptr, 10);
        sizes += "," + std::to_string(std::strtoul(words[at], nullptr, 10));
    }
    if (image_bytes == 0 || values.empty() || values.size() % image_bytes != 0) {
        std::fprintf(stderr, "infer: %s: has no whole images of this size\n", words[2]);
        return 2;
    }
    const std::size_t images = values.size() / image_bytes;
    const std::string head =
        "{\"inputs\":[{\"name\":\"input\",\"datatype\":\"FP32\",\"shape\":[" + std::to_string(images) + sizes +
        "],\"parameters\":{\"binary_data_size\":" + std::to_string(values.size()) +
        "}}],\"outputs\":[{\"name\":\"logits\",\"parameters\":{\"binary_data\":true}}]}";
    const std::string body = head + values;

    const std::unique_ptr<CURL, void (*)(CURL *)> curl(curl_easy_init(), curl_easy_cleanup);
    curl_slist *lines = curl_slist_append(nullptr, (LENGTH_HEADER + " " + std::to_string(head.size())).c_str());
    lines = curl_slist_append(lines, "content-type: application/octet-stream");
    const std::unique_ptr<curl_slist, void (*)(curl_slist *)> headers(lines, curl_slist_free_all);
    std::string answer;
    std::size_t json_bytes = 0;
    char error[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(curl.get(), CURLOPT_UNIX_SOCKET_PATH, words[1]);
    curl_easy_setopt(curl.get(), CURLOPT_URL, "http://localhost/v2/models/model/infer");
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl.get(), CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(curl.get(), CURLOPT_HEADERDATA, &json_bytes);
    curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error);
    long status = 0;
    if (curl_easy_perform(curl.get()) == CURLE_OK) {
        curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
    }
    if (status != 200 || json_bytes == 0 || answer.size() < json_bytes + images * sizeof(float)) {
        std::fprintf(stderr, "infer: %s: %s (%ld)\n", words[1], status == 0 ? error : answer.c_str(), status);
        return 1;
    }
    std::vector<float> logits((answer.size() - json_bytes) / sizeof(float));
    std::memcpy(logits.data(), answer.data() + json_bytes, logits.size() * sizeof(float));
    const std::size_t classes = logits.size() / images;
    for (const float *row = logits.data(); row < logits.data() + images * classes; row += classes) {
        const float *best = std::max_element(row, row + classes);
        std::printf("%ld %.9g\n", static_cast<long>(best - row), *best);
    }
    std::printf("%.*s\n", static_cast<int>(json_bytes), answer.c_str());
    return 0;
}
