#include "pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace hvd_compress::cpu {
namespace {

std::atomic<int> wanted_threads{1};

// A worker looks this often for the next loop before it sleeps: the loops of one kernel follow each other closely. A
// caller looks as often for the end of its workers.
constexpr int kSpins = 2000;

// A worker that sleeps begins so long after it was called: a loop of many parts that the caller ends sooner is left to
// it. Of few parts the first is too long to be tried.
constexpr std::chrono::microseconds kWaking{60};

// Parts are divided into so many ranges at most, one a thread: what a thread works on lies together in memory, which
// is faster than parts that threads take in turn. A thread whose range is done helps with the others.
constexpr int kMaxRanges = 64;

struct alignas(64) Range {  // a cache line each, as every thread writes to its own
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};

// How this thread's arithmetic treats denormals: what torch.set_flush_denormal() sets, for one thread.
inline std::uint32_t arithmetic_mode() noexcept {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr();
#else
    return 0;
#endif
}

inline void set_arithmetic_mode([[maybe_unused]] std::uint32_t mode) noexcept {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(mode);
#endif
}

inline void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

class Pool {
  public:
    bool try_take() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
    void give_back() noexcept { taken_.store(false, std::memory_order_release); }

    // The caller has taken the pool.
    void run(std::int64_t parts, int helpers, detail::PartBody body, void* context) noexcept {
        start_workers(helpers);
        std::int64_t first = 0;
        if (parts >= 4 * (helpers + 1) && asleep_.load(std::memory_order_relaxed) >= helpers) {
            using Clock = std::chrono::steady_clock;
            const Clock::time_point start = Clock::now();
            body(context, first++);
            if ((Clock::now() - start) * (parts - 1) < kWaking) {
                for (; first < parts; ++first) body(context, first);
                return;
            }
        }
        parts -= first;
        {
            const std::lock_guard lock(mutex_);
            body_ = body;
            context_ = context;
            mode_ = arithmetic_mode();
            range_count_ = std::min(helpers + 1, kMaxRanges);
            for (int i = 0; i < range_count_; ++i) {
                ranges_[i].next.store(first + parts * i / range_count_, std::memory_order_relaxed);
                ranges_[i].end = first + parts * (i + 1) / range_count_;
            }
            places_ = helpers;
            round_.fetch_add(1, std::memory_order_release);
        }
        for (int i = 0; i < helpers; ++i) wake_.notify_one();  // not all: there may have been more once
        take_parts(0, body, context);
        {
            const std::lock_guard lock(mutex_);
            places_ = 0;  // whoever wakes up only now has nothing to do
        }
        // To be woken up takes longer than the part that a worker is at.
        for (int i = 0; i < kSpins && inside_.load(std::memory_order_acquire) != 0; ++i) relax();
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return inside_.load(std::memory_order_relaxed) == 0; });
    }

  private:
    void start_workers(int count) noexcept {
        for (; workers_ < count; ++workers_) {
            try {
                std::thread([this] { work(); }).detach();
            } catch (...) {
                return;  // no more threads to be had: the caller and those there are do all parts
            }
        }
    }

    void take_parts(int first_range, detail::PartBody body, void* context) noexcept {
        for (int i = 0; i < range_count_; ++i) {
            Range& range = ranges_[(first_range + i) % range_count_];
            for (std::int64_t part; (part = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) {
                body(context, part);
            }
        }
    }

    void work() noexcept {
        std::uint64_t seen = 0;
        int spins = kSpins;  // not for a worker of whom nothing is wanted any more
        for (;;) {
            for (int i = 0; i < spins && round_.load(std::memory_order_acquire) == seen; ++i) relax();
            std::unique_lock lock(mutex_);
            ++asleep_;
            wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
            --asleep_;
            seen = round_.load(std::memory_order_relaxed);
            spins = places_ == 0 ? 0 : kSpins;
            if (places_ == 0) continue;
            const int range = places_-- % range_count_;
            ++inside_;
            const auto body = body_;
            const auto context = context_;
            set_arithmetic_mode(mode_);  // the caller's: it may not matter which thread runs a part
            lock.unlock();
            take_parts(range, body, context);
            lock.lock();
            if (--inside_ == 0) done_.notify_one();
        }
    }

    std::atomic<bool> taken_{false};
    int workers_ = 0;  // of whoever has taken the pool

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    detail::PartBody body_ = nullptr;
    void* context_ = nullptr;
    std::uint32_t mode_ = 0;
    int places_ = 0;              // workers that may still join this round
    std::atomic<int> inside_{0};  // workers that have joined and not left
    std::atomic<int> asleep_{0};  // workers that spin no longer

    Range ranges_[kMaxRanges];
    int range_count_ = 1;  // changed only while no worker is inside

    std::atomic<std::uint64_t> round_{0};
};

// Never destroyed: workers wait in it until the process ends.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() noexcept {
    static const bool made = [] {
        pool = new Pool;
        // Threads do not survive a fork: the child starts with a pool of its own.
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
        return true;
    }();
    static_cast<void>(made);
    return *pool.load(std::memory_order_relaxed);
}

// Made when the library is loaded: a fork in the middle of a first call would leave a child that waits for it for ever.
[[maybe_unused]] const Pool& made_early = the_pool();

}  // namespace

void set_num_threads(int threads) noexcept { wanted_threads = threads < 1 ? 1 : threads; }

int num_threads() noexcept { return wanted_threads.load(std::memory_order_relaxed); }

void detail::run_parts(std::int64_t parts, PartBody body, void* context) noexcept {
    const std::int64_t helpers = std::min<std::int64_t>(parts, num_threads()) - 1;
    if (helpers > 0) {
        Pool& shared = the_pool();
        if (shared.try_take()) {
            shared.run(parts, static_cast<int>(helpers), body, context);
            shared.give_back();
            return;
        }
    }
    for (std::int64_t part = 0; part < parts; ++part) body(context, part);
}

}  // namespace hvd_compress::cpu
