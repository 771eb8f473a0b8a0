// The worker pool by itself, for ThreadSanitizer: tools/sanitize.py builds and runs it. Ends with status 0 if all is
// well.
#include "../../../csrc/cpu/pool/pool.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using hvd_compress::cpu::parallel_for;
using hvd_compress::cpu::set_num_threads;

namespace {

std::atomic<int> failures{0};

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    ++failures;
}

// Every part writes to its own element, without any other synchronisation than the pool's.
void check_parts(std::int64_t parts) {
    std::vector<std::int64_t> seen(static_cast<std::size_t>(parts), 0);
    for (int round = 1; round <= 3; ++round) {
        parallel_for(parts, [&](std::int64_t part) { ++seen[static_cast<std::size_t>(part)]; });
        for (const std::int64_t count : seen) expect(count == round, "every part runs once");
    }
}

// Workers that have gone to sleep are called for a long loop, and a short one does not wait for them.
void check_asleep(std::chrono::microseconds each) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::vector<std::thread::id> by(400);
    std::vector<int> runs(400, 0);
    parallel_for(400, [&](std::int64_t part) {
        ++runs[static_cast<std::size_t>(part)];
        const auto end = std::chrono::steady_clock::now() + each;
        while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
        by[static_cast<std::size_t>(part)] = std::this_thread::get_id();
    });
    bool others = false;
    for (const std::thread::id id : by) {
        expect(id != std::thread::id{}, "every part runs after a sleep");
        others = others || id != std::this_thread::get_id();
    }
    for (const int count : runs) expect(count == 1, "every part runs once after a sleep");
    if (each.count() > 0) expect(others, "workers that sleep are called for a long loop");
}

void check_nested() {
    std::atomic<int> total{0};
    parallel_for(8, [&](std::int64_t) { parallel_for(5, [&](std::int64_t) { ++total; }); });
    expect(total == 40, "a loop within a part runs, too");
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 3, 8, 100}) {
        set_num_threads(threads);
        for (const std::int64_t parts : {0, 1, 2, 7, 1000}) check_parts(parts);
        check_nested();
        check_asleep(std::chrono::microseconds{0});
        if (threads > 1) check_asleep(std::chrono::microseconds{500});
    }
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([] {
            for (int i = 0; i < 200; ++i) check_parts(50);
        });
    }
    for (std::thread& caller : callers) caller.join();
    return failures == 0 ? 0 : 1;
}
