// The search itself: which payload is mutated next, and what is kept.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "decoders.hpp"

namespace fuzz {

Bytes read_file(const std::filesystem::path& path);

struct Count {
    std::int64_t payloads = 0, accepted = 0;
};

// Counts of all runs, in a file: seconds, and a line a decoder with its payloads and how many were accepted.
class State {
  public:
    State(std::filesystem::path file, const std::vector<Decoder>& decoders);

    std::int64_t payloads() const;
    void add(const char* decoder, Count count);
    void add_seconds(double seconds) { seconds_ += seconds; }
    void save() const;
    void print() const;

  private:
    std::filesystem::path file_;
    std::map<std::string, Count> all_, now_;  // of all runs, of this one
    double seconds_ = 0;                      // of all runs
};

class Fuzzer {
  public:
    // `current` is where the payload that is decoded lies, should the process die.
    Fuzzer(const std::vector<Decoder>& decoders, std::uint64_t seed, std::filesystem::path corpus,
           std::uint8_t* current);

    // Stops after this number of seconds, or of payloads where that is not negative.
    void run(double seconds, std::int64_t count, State& state);
    std::size_t kept() const;

  private:
    struct Pool {
        const Decoder* decoder;
        std::vector<Payload> honest, kept;
        Count count;
    };

    void one(Pool& pool);
    void keep(Pool& pool, const Payload& payload);
    bool decode(const Pool& pool, const Payload& payload);
    void load();
    void hand_over(State& state);

    std::vector<Decoder> decoders_;
    std::vector<Pool> pools_;
    Random random_;
    std::filesystem::path corpus_;
    std::uint8_t* current_;
    Memory memory_;
    Payload scratch_;
};

}  // namespace fuzz
