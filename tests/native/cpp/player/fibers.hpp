// The threads of CUDA blocks as fibers of one thread, for a kernel that is compiled with HVD_COMPRESS_FIBERS and
// -fsanitize=thread: what a GPU has in common with it is everything but its speed.
//
// Two blocks run at once, in random order, and which thread goes on is drawn anew after every barrier, shuffle and
// atomic. ThreadSanitizer's instrumentation tells of every access; its runtime is races.cpp's, which knows what orders
// memory on a GPU: the barrier of a block, and the end of a launch. A shuffle orders none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd_compress::fibers {

using Count = unsigned long long;

// Of the fiber that runs: its number in its block.
int thread();

// As __syncthreads().
void barrier();

// As __shfl_sync() of a full warp: `other` becomes the `bytes` of `mine` of a lane.
void exchange(const void* mine, void* other, std::size_t bytes, int lane);

// What memory and registers hold before something is written to them, in every byte: another value in each run.
unsigned char poison();

// As __ballot_sync() of a full warp.
std::uint32_t ballot(bool x);

std::uint32_t atomic_add(std::uint32_t* at, std::uint32_t value);
Count atomic_add(Count* at, Count value);
std::uint32_t atomic_or(std::uint32_t* at, std::uint32_t bits);
Count atomic_min(Count* at, Count value);

// As an atomic addition of 1 between two fences of the device.
std::uint32_t take_ticket(std::uint32_t* at);

// Stores what other threads store at the same time, too.
void store_same(std::int32_t* at, std::int32_t value);

using Body = void(const void* kernel, void* shared, std::int64_t block, std::int64_t blocks);

// Runs `blocks` blocks of `threads` threads, with `shared_bytes` of poisoned memory each.
void launch(const char* name, int threads, std::int64_t blocks, std::size_t shared_bytes, Body* body,
            const void* kernel);

// Memory of the device. A kernel may use no other.
void* allocate(std::size_t bytes);

// What a test program does with it.
namespace player {
void free_all();
void set_seed(std::uint64_t seed);

// The place of a barrier or an atomic, by its return address, that is left out. Of what is left out an atomic is a load
// and a store.
void leave_out(std::uintptr_t place);

// Ends the program at the first finding. Otherwise all are printed, each place once: "race 0x4012ab KERNEL".
void stop_at_first();

struct Totals {
    std::int64_t findings, turns, accesses;
};
Totals totals();

// Prints "barrier 0x4012ab", "atomic ..." or "ticket ..." for all places that were met.
void print_places();
}  // namespace player

}  // namespace hvd_compress::fibers
