#include "fibers.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "races.hpp"

// The kernel's call of one of these functions.
#define HVD_COMPRESS_PLACE reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))

extern "C" const char __executable_start, end;

namespace hvd_compress::fibers {
namespace {

constexpr int kBlocksAtOnce = 2, kWarp = 32, kMostThreads = 1024;
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kMemoryBytes = std::size_t{512} << 20;
constexpr std::size_t kWidest = 16;  // bytes of a shuffle
constexpr int kTurnsPerYield = 16;   // one in this many atomics is followed by another thread's turn
constexpr std::size_t kGap = 256;    // bytes behind what is allocated, which nobody may use
constexpr int kFailed = 66;          // the program's exit status

enum class Use { kRead, kWrite, kAdd };
enum class State { kRuns, kInBarrier, kInShuffle, kOver };

struct Block {
    std::int64_t index = 0;
    std::uint32_t number = 0;  // as races know it
    Stamp since = 0;
    void* shared = nullptr;
    std::size_t shared_offset = 0;
    Released acquired, acquires;  // by its threads now, and from its next barrier on
    int in_barrier = 0, over = 0;
    std::uintptr_t barrier = 0;  // where its first thread waits
    bool runs = false;
};

struct Warp {
    int in_shuffle = 0;
    std::uintptr_t shuffle = 0;  // where its first thread waits
    unsigned turn = 0;
};

struct Fiber {
    jmp_buf place;
    ucontext_t context;
    bool began = false;
    char* stack = nullptr;
    Block* block = nullptr;
    Warp* warp = nullptr;
    int thread = 0;
    State state = State::kOver;
    unsigned char sent[2][kWidest];  // of this shuffle and the one before, which others may still read
};

char* map(std::size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("memory of fibers");
        std::exit(1);
    }
    return static_cast<char*>(memory);
}

class Player {
  public:
    Player()
        : memory_(map(kMemoryBytes)),
          given_(map(kMemoryBytes)),
          races_(kMemoryBytes),
          fibers_(kBlocksAtOnce * kMostThreads) {
        char* const stacks = map(fibers_.size() * kStackBytes);
        for (std::size_t i = 0; i < fibers_.size(); ++i) fibers_[i].stack = stacks + i * kStackBytes;
    }

    Fiber* now() { return now_; }
    void set_seed(std::uint64_t seed) { random_ = seed * 0x9e3779b97f4a7c15ull + 1; }
    void leave_out(std::uintptr_t place) { left_out_.push_back(place); }
    void stop_at_first() { stops_ = true; }
    player::Totals totals() const { return {findings_, turns_, accesses_}; }

    void* allocate(std::size_t bytes) {
        const std::size_t offset = (used_ + kGap + 255) / 256 * 256;
        if (offset + bytes > kMemoryBytes) {
            std::fputs("the device's memory is full\n", stderr);
            std::exit(1);
        }
        used_ = offset + bytes;
        std::memset(memory_ + offset, poison(), bytes);
        std::memset(given_ + offset, 1, bytes);
        races_.forget(offset, bytes);
        return memory_ + offset;
    }

    void free_all() { free_from(0); }
    unsigned char poison() const { return static_cast<unsigned char>(0x5a + random_ % 64); }

    void launch(const char* name, int threads, std::int64_t count, std::size_t shared_bytes, Body* body,
                const void* kernel) {
        if (threads % kWarp != 0 || threads > kMostThreads) fail("a bad number of threads", 0);
        name_ = name, threads_ = threads, count_ = count, body_ = body, kernel_ = kernel;
        races_.begin_launch();
        std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
        std::iota(indices.begin(), indices.end(), 0);
        for (std::size_t i = indices.size(); i > 1; --i) std::swap(indices[i - 1], indices[draw(i)]);
        const std::size_t used = used_;
        for (Block& block : blocks_) {
            block = {};
            block.shared = allocate(shared_bytes);
            block.shared_offset = static_cast<std::size_t>(static_cast<char*>(block.shared) - memory_);
        }
        std::size_t next = 0;
        std::uint32_t numbers = 0;
        for (;;) {
            for (int slot = 0; slot < kBlocksAtOnce; ++slot) {
                if (!blocks_[slot].runs && next < indices.size()) begin(slot, indices[next++], ++numbers, shared_bytes);
            }
            if (std::none_of(blocks_, blocks_ + kBlocksAtOnce, [](const Block& block) { return block.runs; })) break;
            give_turns();
        }
        free_from(used);
    }

    void barrier(std::uintptr_t place) {
        meet(place, "barrier");
        if (is_left_out(place)) return;
        Block& block = *now_->block;
        if (block.in_barrier++ == 0) block.barrier = place;
        if (block.barrier != place) find("divergent-barrier", place);
        now_->state = State::kInBarrier;
        leave();
    }

    void exchange(const void* mine, void* other, std::size_t bytes, int lane, std::uintptr_t place) {
        const unsigned turn = send(mine, bytes, place);
        std::memcpy(other, first_of_warp()[lane].sent[turn], bytes);
    }

    std::uint32_t ballot(bool x, std::uintptr_t place) {
        const unsigned turn = send(&x, sizeof x, place);
        std::uint32_t all = 0;
        for (int lane = 0; lane < kWarp; ++lane) {
            all |= static_cast<std::uint32_t>(first_of_warp()[lane].sent[turn][0]) << lane;
        }
        return all;
    }

    template <class T, class F>
    T atomic(T* at, std::uintptr_t place, const F& f) {
        meet(place, "atomic");
        const bool left_out = is_left_out(place);
        if (draw(kTurnsPerYield) == 0) leave();
        if (left_out) access(at, sizeof *at, place, Use::kRead);
        const T before = *at;
        if (left_out) leave();
        access(at, sizeof *at, place, left_out ? Use::kWrite : Use::kAdd);
        *at = f(before);
        return before;
    }

    std::uint32_t take_ticket(std::uint32_t* at, std::uintptr_t place) {
        meet(place, "ticket");
        Block& block = *now_->block;
        if (!is_left_out(place)) block.acquires = races_.take_ticket(at, block.number, block.since);
        access(at, sizeof *at, place, Use::kAdd);
        return (*at)++;
    }

    void access(const void* data, std::size_t bytes, std::uintptr_t place, Use use, std::size_t alignment = 1) {
        if (now_ == nullptr) return;
        ++accesses_;
        const auto at = reinterpret_cast<std::uintptr_t>(data);
        if (at % alignment != 0) find("misaligned", place);
        const std::size_t offset = at - reinterpret_cast<std::uintptr_t>(memory_);
        if (offset >= kMemoryBytes) return elsewhere(at, place, use != Use::kRead);
        if (bytes > 0 && (given_[offset] == 0 || given_[offset + bytes - 1] == 0)) find("beyond-memory", place);
        const Accessor who{now_->block->since + static_cast<Stamp>(now_->thread), now_->block->since,
                           now_->block->number, &now_->block->acquired};
        const bool ordered = use == Use::kRead    ? races_.read(who, offset, bytes)
                             : use == Use::kWrite ? races_.write(who, offset, bytes)
                                                  : races_.add(who, offset, bytes);
        if (!ordered) find("race", place);
    }

    void find(const char* what, std::uintptr_t place) {
        ++findings_;
        if (found_.insert({what, place}).second) {
            std::printf("%s 0x%zx thread %d of block %lld of %lld, %s\n", what, place, now_ ? now_->thread : -1,
                        now_ ? static_cast<long long>(now_->block->index) : -1LL, static_cast<long long>(count_),
                        name_);
            std::fflush(stdout);
        }
        if (stops_) std::_Exit(kFailed);
    }

    void print_places() const {
        for (const auto& [place, what] : met_) std::printf("%s 0x%zx\n", what, place);
    }

  private:
    void free_from(std::size_t offset) {
        std::memset(given_ + offset, 0, used_ - offset);
        used_ = offset;
    }

    // Waits until all of the warp have sent, and returns where they have.
    unsigned send(const void* mine, std::size_t bytes, std::uintptr_t place) {
        Fiber& own = *now_;
        const unsigned turn = own.warp->turn % 2;
        std::memcpy(own.sent[turn], mine, bytes);
        if (own.warp->in_shuffle++ == 0) own.warp->shuffle = place;
        if (own.warp->shuffle != place) find("divergent-shuffle", place);
        own.state = State::kInShuffle;
        leave();
        return turn;
    }
    Fiber* first_of_warp() { return now_ - now_->thread % kWarp; }

    // xorshift64*
    std::size_t draw(std::size_t below) {
        random_ ^= random_ >> 12;
        random_ ^= random_ << 25;
        random_ ^= random_ >> 27;
        return (random_ * 0x2545f4914f6cdd1dull >> 33) % below;
    }

    void meet(std::uintptr_t place, const char* what) { met_.insert({place, what}); }
    bool is_left_out(std::uintptr_t place) const {
        return std::find(left_out_.begin(), left_out_.end(), place) != left_out_.end();
    }

    [[noreturn]] void fail(const char* what, std::uintptr_t place) {
        find(what, place);
        std::_Exit(kFailed);
    }

    // A kernel may also use its own registers, as a stack has them, and read its arguments and constants.
    void elsewhere(std::uintptr_t at, std::uintptr_t place, bool writes) {
        const auto stack = reinterpret_cast<std::uintptr_t>(now_->stack);
        if (at - stack < kStackBytes) return;
        const auto first = reinterpret_cast<std::uintptr_t>(fibers_[0].stack);
        if (at - first < fibers_.size() * kStackBytes) return find("another-threads-register", place);
        const auto argument = reinterpret_cast<std::uintptr_t>(kernel_);
        const bool constant =
            at >= reinterpret_cast<std::uintptr_t>(&__executable_start) && at < reinterpret_cast<std::uintptr_t>(&end);
        if (!writes && (constant || at - argument < kMostArgumentBytes)) return;
        find("hosts-memory", place);
    }

    void begin(int slot, std::int64_t index, std::uint32_t number, std::size_t shared_bytes) {
        Block& block = blocks_[slot];
        std::memset(block.shared, poison(), shared_bytes);
        races_.forget(block.shared_offset, shared_bytes);
        block.acquired.clear();
        block.acquires.clear();
        block.index = index, block.number = number, block.in_barrier = block.over = 0, block.runs = true;
        block.since = races_.begin_epoch(number, threads_);
        for (int thread = 0; thread < threads_; ++thread) {
            Fiber& fiber = fibers_[static_cast<std::size_t>(slot * kMostThreads + thread)];
            fiber.block = &block, fiber.thread = thread, fiber.state = State::kRuns;
            fiber.warp = &warps_[slot][thread / kWarp];
            *fiber.warp = {};
        }
    }

    // One turn for each thread that can go on, in an order that is drawn.
    void give_turns() {
        const int all = kBlocksAtOnce * threads_, way = static_cast<int>(draw(4));
        const int shift = static_cast<int>(draw(static_cast<std::size_t>(all)));
        bool went_on = false;
        for (int i = 0; i < all; ++i) {
            const int turn = way == 0   ? i
                             : way == 1 ? all - 1 - i
                             : way == 2 ? (i + shift) % all
                                        : (i * 7 + shift) % all;
            Fiber& fiber = fibers_[static_cast<std::size_t>(turn / threads_ * kMostThreads + turn % threads_)];
            if (fiber.block == nullptr || !fiber.block->runs || fiber.state != State::kRuns) continue;
            went_on = true;
            enter(fiber);
            if (fiber.state == State::kInShuffle && fiber.warp->in_shuffle == kWarp) end_shuffle(fiber);
            Block& block = *fiber.block;
            if (fiber.state == State::kOver && ++block.over == threads_) block.runs = false;
            if (block.in_barrier == threads_) end_barrier(block);
        }
        if (!went_on) fail("divergent-barrier", stuck_at());
    }

    std::uintptr_t stuck_at() const {
        for (const Block& block : blocks_) {
            if (block.runs && block.in_barrier > 0) return block.barrier;
        }
        for (const auto& warps : warps_) {
            for (const Warp& warp : warps) {
                if (warp.in_shuffle > 0) return warp.shuffle;
            }
        }
        return 0;
    }

    void end_shuffle(Fiber& fiber) {
        fiber.warp->in_shuffle = 0;
        ++fiber.warp->turn;
        Fiber* const first = &fiber - fiber.thread % kWarp;
        for (int lane = 0; lane < kWarp; ++lane) first[lane].state = State::kRuns;
    }

    void end_barrier(Block& block) {
        block.in_barrier = 0;
        block.since = races_.begin_epoch(block.number, threads_);
        block.acquired = block.acquires;
        Fiber* const first = &fibers_[static_cast<std::size_t>((&block - blocks_) * kMostThreads)];
        for (int thread = 0; thread < threads_; ++thread) first[thread].state = State::kRuns;
    }

    // Contexts begin a fiber; from then on jumps do, which ask the kernel of the system for nothing.
    void enter(Fiber& fiber) {
        now_ = &fiber;
        ++turns_;
        if (_setjmp(host_) == 0) {
            if (fiber.began) _longjmp(fiber.place, 1);
            fiber.began = true;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack;
            fiber.context.uc_stack.ss_size = kStackBytes;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, &Player::run, 0);
            setcontext(&fiber.context);
        }
        now_ = nullptr;
    }

    void leave() {
        if (_setjmp(now_->place) == 0) _longjmp(host_, 1);
    }

    static void run();

    static constexpr std::size_t kMostArgumentBytes = 32768;

    char *memory_, *given_;  // the second says of each byte whether it is allocated
    std::size_t used_ = 0;
    Races races_;
    std::vector<Fiber> fibers_;
    Block blocks_[kBlocksAtOnce];
    Warp warps_[kBlocksAtOnce][kMostThreads / kWarp];
    Fiber* now_ = nullptr;
    jmp_buf host_;
    std::uint64_t random_ = 1;

    const char* name_ = "";
    int threads_ = 0;
    std::int64_t count_ = 0;
    Body* body_ = nullptr;
    const void* kernel_ = nullptr;

    std::vector<std::uintptr_t> left_out_;
    bool stops_ = false;
    std::set<std::pair<std::string, std::uintptr_t>> found_;
    std::set<std::pair<std::uintptr_t, const char*>> met_;
    std::int64_t findings_ = 0, turns_ = 0, accesses_ = 0;
};

Player& the_player() {
    static Player player;
    return player;
}

void Player::run() {
    for (;;) {
        Player& player = the_player();
        Fiber& own = *player.now_;
        player.body_(player.kernel_, own.block->shared, own.block->index, player.count_);
        own.state = State::kOver;
        player.leave();
    }
}

}  // namespace

int thread() { return the_player().now()->thread; }
void barrier() { the_player().barrier(HVD_COMPRESS_PLACE); }
void exchange(const void* mine, void* other, std::size_t bytes, int lane) {
    the_player().exchange(mine, other, bytes, lane, HVD_COMPRESS_PLACE);
}
unsigned char poison() { return the_player().poison(); }
std::uint32_t ballot(bool x) { return the_player().ballot(x, HVD_COMPRESS_PLACE); }
std::uint32_t atomic_add(std::uint32_t* at, std::uint32_t value) {
    return the_player().atomic(at, HVD_COMPRESS_PLACE, [=](std::uint32_t before) { return before + value; });
}
Count atomic_add(Count* at, Count value) {
    return the_player().atomic(at, HVD_COMPRESS_PLACE, [=](Count before) { return before + value; });
}
std::uint32_t atomic_or(std::uint32_t* at, std::uint32_t bits) {
    return the_player().atomic(at, HVD_COMPRESS_PLACE, [=](std::uint32_t before) { return before | bits; });
}
Count atomic_min(Count* at, Count value) {
    return the_player().atomic(at, HVD_COMPRESS_PLACE, [=](Count before) { return std::min(before, value); });
}
std::uint32_t take_ticket(std::uint32_t* at) { return the_player().take_ticket(at, HVD_COMPRESS_PLACE); }
void store_same(std::int32_t* at, std::int32_t value) {
    the_player().access(at, sizeof *at, HVD_COMPRESS_PLACE, Use::kAdd);
    *at = value;
}
void launch(const char* name, int threads, std::int64_t blocks, std::size_t shared_bytes, Body* body,
            const void* kernel) {
    the_player().launch(name, threads, blocks, shared_bytes, body, kernel);
}
void* allocate(std::size_t bytes) { return the_player().allocate(bytes); }

namespace player {
void free_all() { the_player().free_all(); }
void set_seed(std::uint64_t seed) { the_player().set_seed(seed); }
void leave_out(std::uintptr_t place) { the_player().leave_out(place); }
void stop_at_first() { the_player().stop_at_first(); }
Totals totals() { return the_player().totals(); }
void print_places() { the_player().print_places(); }
}  // namespace player

}  // namespace hvd_compress::fibers

// What -fsanitize=thread makes of the accesses of a kernel (GCC's and LLVM's interface, in the place of their runtime).
using namespace hvd_compress::fibers;

#define HVD_COMPRESS_TOUCHED(name, bytes, use)                                                                   \
    void __tsan_##name##bytes(void* at) { the_player().access(at, bytes, HVD_COMPRESS_PLACE, Use::use, bytes); } \
    void __tsan_unaligned_##name##bytes(void* at) { the_player().access(at, bytes, HVD_COMPRESS_PLACE, Use::use); }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
HVD_COMPRESS_TOUCHED(read, 1, kRead)
HVD_COMPRESS_TOUCHED(read, 2, kRead)
HVD_COMPRESS_TOUCHED(read, 4, kRead)
HVD_COMPRESS_TOUCHED(read, 8, kRead)
HVD_COMPRESS_TOUCHED(read, 16, kRead)
HVD_COMPRESS_TOUCHED(write, 1, kWrite)
HVD_COMPRESS_TOUCHED(write, 2, kWrite)
HVD_COMPRESS_TOUCHED(write, 4, kWrite)
HVD_COMPRESS_TOUCHED(write, 8, kWrite)
HVD_COMPRESS_TOUCHED(write, 16, kWrite)
void __tsan_read_range(void* at, std::size_t bytes) { the_player().access(at, bytes, HVD_COMPRESS_PLACE, Use::kRead); }
void __tsan_write_range(void* at, std::size_t bytes) {
    the_player().access(at, bytes, HVD_COMPRESS_PLACE, Use::kWrite);
}
// Of std::atomic, which the host's side of a launcher uses.
int __tsan_atomic32_load(const volatile int* at, int) { return *at; }
void __tsan_atomic32_store(volatile int* at, int value, int) { *at = value; }
}
