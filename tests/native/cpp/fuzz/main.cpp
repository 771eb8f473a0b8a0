// Mutated payloads through every decoder of csrc/cpu, under AddressSanitizer and UndefinedBehaviorSanitizer.
//
//     fuzz_decoders FOLDER [--seconds S] [--count N] [--seed N] [--only DECODER]
//     fuzz_decoders --repeat FILE
//     fuzz_decoders --list
//
// FOLDER keeps what adds up over runs: `state`, the payloads so far by decoder, from whose number the seed follows; and
// `corpus`, inputs that took new ways through the code. The payload that is being decoded is in `current`, which stays
// there after a finding and otherwise goes. Ends with status 0 if nothing was found.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "../../../../csrc/cpu/pool/pool.hpp"
#include "fuzzer.hpp"

namespace {

using namespace fuzz;

struct Options {
    std::filesystem::path folder;
    double seconds = 1e9;
    std::int64_t count = -1, seed = -1;
    std::string only;
};

std::vector<Decoder> all_decoders() {
    std::vector<Decoder> all = dense_decoders();
    for (const auto& more : {sparse_decoders(), planted_decoders()}) all.insert(all.end(), more.begin(), more.end());
    return all;
}

int list_all() {
    for (const Decoder& decoder : all_decoders()) std::printf("%s\n", decoder.name);
    return 0;
}

int repeat(const char* path) {
    std::string name;
    Payload payload;
    if (!read_payload(read_file(path), name, payload)) {
        std::fprintf(stderr, "%s is no payload of this program\n", path);
        return 2;
    }
    Memory memory;
    for (const Decoder& decoder : all_decoders()) {
        if (name != decoder.name) continue;
        const bool accepted = decoder.decode(payload, memory);
        memory.release();
        std::printf("%s: %s\n", decoder.name, accepted ? "accepted" : "refused");
        return 0;
    }
    std::fprintf(stderr, "%s is a payload of %s, which is no decoder\n", path, name.c_str());
    return 2;
}

// Memory that is a file: what it holds when the process dies stays.
std::uint8_t* mapped(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
    void* const found = file >= 0 && ::ftruncate(file, kMaxFile) == 0
                            ? ::mmap(nullptr, kMaxFile, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                            : MAP_FAILED;
    if (file >= 0) ::close(file);
    if (found == MAP_FAILED) {
        std::perror(path.c_str());
        std::exit(2);
    }
    return static_cast<std::uint8_t*>(found);
}

int search(const Options& options) {
    std::filesystem::create_directories(options.folder);
    std::vector<Decoder> decoders;
    for (const Decoder& decoder : all_decoders()) {
        if (options.only.empty() ? !decoder.planted : options.only == decoder.name) decoders.push_back(decoder);
    }
    if (decoders.empty()) {
        std::fprintf(stderr, "no decoder %s\n", options.only.c_str());
        return 2;
    }
    State state(options.folder / "state", decoders);
    const auto current = options.folder / "current";
    const std::int64_t seed = options.seed >= 0 ? options.seed : state.payloads();
    Fuzzer fuzzer(decoders, static_cast<std::uint64_t>(seed), options.folder / "corpus", mapped(current));
    std::printf("seed %lld, %lld payloads before, %zu inputs in the corpus\n", static_cast<long long>(seed),
                static_cast<long long>(state.payloads()), fuzzer.kept());
    std::fflush(stdout);
    fuzzer.run(options.seconds, options.count, state);
    std::filesystem::remove(current);
    state.print();
    return 0;
}

}  // namespace

int main(int words, char** word) {
    hvd_compress::cpu::set_num_threads(1);
    if (words == 2 && std::strcmp(word[1], "--list") == 0) return list_all();
    if (words == 3 && std::strcmp(word[1], "--repeat") == 0) return repeat(word[2]);
    Options options;
    bool good = words % 2 == 0 && word[1][0] != '-';
    for (int i = 2; good && i + 1 < words; i += 2) {
        const std::string name = word[i], value = word[i + 1];
        if (name == "--seconds") {
            options.seconds = std::atof(value.c_str());
        } else if (name == "--count") {
            options.count = std::atoll(value.c_str());
        } else if (name == "--seed") {
            options.seed = std::atoll(value.c_str());
        } else if (name == "--only") {
            options.only = value;
        } else {
            good = false;
        }
    }
    if (!good) {
        std::fprintf(stderr, "FOLDER [--seconds S] [--count N] [--seed N] [--only DECODER], --repeat FILE or --list\n");
        return 2;
    }
    options.folder = word[1];
    return search(options);
}
