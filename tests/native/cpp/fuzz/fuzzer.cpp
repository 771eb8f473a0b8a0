#include "fuzzer.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "coverage.hpp"

namespace fuzz {
namespace {

constexpr std::size_t kHonest = 32, kKept = 1024;
constexpr std::int64_t kRenewed = 512;     // payloads after which one that is honest makes room for another
constexpr std::int64_t kUnchanged = 64;    // one of this number is not mutated
constexpr std::int64_t kRound = 4096;      // payloads between two looks at the clock
constexpr std::size_t kLargest = 1 << 14;  // bytes of an input that is kept in the corpus
constexpr double kSaved = 10.0;            // seconds

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

State::State(std::filesystem::path file, const std::vector<Decoder>& decoders) : file_(std::move(file)) {
    for (const Decoder& decoder : decoders) all_[decoder.name];
    std::ifstream lines(file_);
    std::string name;
    lines >> name >> seconds_;
    for (Count count; lines >> name >> count.payloads >> count.accepted;) all_[name] = count;
}

std::int64_t State::payloads() const {
    std::int64_t sum = 0;
    for (const auto& [name, count] : all_) sum += count.payloads;
    return sum;
}

void State::add(const char* decoder, Count count) {
    for (Count* const sum : {&all_[decoder], &now_[decoder]}) {
        sum->payloads += count.payloads;
        sum->accepted += count.accepted;
    }
}

void State::save() const {
    const auto beside = file_.string() + ".new";
    {
        std::ofstream lines(beside);
        lines << "seconds " << seconds_ << '\n';
        for (const auto& [name, count] : all_) lines << name << ' ' << count.payloads << ' ' << count.accepted << '\n';
    }
    std::filesystem::rename(beside, file_);
}

void State::print() const {
    std::int64_t now = 0;
    for (const auto& [name, count] : now_) {
        const Count& all = all_.at(name);
        std::printf("%-20s %12lld payloads, %5.1f %% accepted; %lld in all runs\n", name.c_str(),
                    static_cast<long long>(count.payloads),
                    100.0 * static_cast<double>(count.accepted) / static_cast<double>(count.payloads),
                    static_cast<long long>(all.payloads));
        now += count.payloads;
    }
    std::printf("in this run: %lld payloads; in all runs: %lld payloads, %.0f s\n", static_cast<long long>(now),
                static_cast<long long>(payloads()), seconds_);
}

Fuzzer::Fuzzer(const std::vector<Decoder>& decoders, std::uint64_t seed, std::filesystem::path corpus,
               std::uint8_t* current)
    : decoders_(decoders), random_{seed}, corpus_(std::move(corpus)), current_(current) {
    std::filesystem::create_directories(corpus_);
    for (const Decoder& decoder : decoders_) {
        Pool& pool = pools_.emplace_back();
        pool.decoder = &decoder;
        for (Payload& payload : std::vector<Payload>(kHonest)) {
            decoder.make(random_, payload);
            pool.honest.push_back(payload);
        }
    }
    load();
}

void Fuzzer::load() {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(corpus_)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());  // so that a run is the same wherever the corpus lies
    for (const auto& path : paths) {
        std::string name;
        Payload payload;
        if (!read_payload(read_file(path), name, payload)) continue;  // of another version of this program
        for (Pool& pool : pools_) {
            if (name != pool.decoder->name) continue;
            decode(pool, payload);
            pool.kept.push_back(payload);
        }
    }
}

std::size_t Fuzzer::kept() const {
    std::size_t sum = 0;
    for (const Pool& pool : pools_) sum += pool.kept.size();
    return sum;
}

bool Fuzzer::decode(const Pool& pool, const Payload& payload) {
    write_payload(pool.decoder->name, payload, current_);
    begin_coverage();
    const bool accepted = pool.decoder->decode(payload, memory_);
    memory_.release();
    return accepted;
}

void Fuzzer::keep(Pool& pool, const Payload& payload) {
    const std::size_t bytes = write_payload(pool.decoder->name, payload, current_);
    if (bytes > kLargest || pool.kept.size() >= kKept) return;
    pool.kept.push_back(payload);
    const std::string name = pool.decoder->name + std::string("-") + std::to_string(random_() >> 1);
    std::ofstream(corpus_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(current_), static_cast<std::streamsize>(bytes));
}

void Fuzzer::one(Pool& pool) {
    const auto honest = [&]() -> Payload& {
        return pool.honest[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(kHonest)))];
    };
    const auto kept = static_cast<std::int64_t>(pool.kept.size());
    const bool unchanged = random_.one_in(kUnchanged);
    if (random_.one_in(kRenewed)) pool.decoder->make(random_, honest());
    const bool again = !unchanged && kept > 0 && random_.one_in(3);
    scratch_ = again ? pool.kept[static_cast<std::size_t>(random_.below(kept))] : honest();
    if (!unchanged) mutate(random_, scratch_, honest(), pool.decoder->resizes);
    const bool accepted = decode(pool, scratch_);
    if (unchanged && !accepted) fail("what an honest rank sends is refused");
    ++pool.count.payloads;
    pool.count.accepted += accepted;
    if (took_new_way()) keep(pool, scratch_);
}

void Fuzzer::hand_over(State& state) {
    for (Pool& pool : pools_) {
        state.add(pool.decoder->name, pool.count);
        pool.count = {};
    }
    state.save();
}

void Fuzzer::run(double seconds, std::int64_t count, State& state) {
    const auto begin = Clock::now();
    double counted = 0.0, now = 0.0;
    const auto save = [&] {
        state.add_seconds(now - counted);
        counted = now;
        hand_over(state);
    };
    for (std::int64_t number = 0; count < 0 || number < count; ++number) {
        one(pools_[static_cast<std::size_t>(number) % pools_.size()]);
        if (number % kRound != 0) continue;
        now = seconds_since(begin);
        if (now - counted > kSaved) save();
        if (now >= seconds) break;
    }
    now = seconds_since(begin);
    save();
}

}  // namespace fuzz
