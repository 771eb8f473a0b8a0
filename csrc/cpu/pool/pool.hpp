// A small pool of worker threads for loops over independent parts.
#pragma once

#include <cstdint>

namespace hvd_compress::cpu {

// How many threads a loop may use, the caller's included; 1 or more. Later calls count.
void set_num_threads(int threads) noexcept;
int num_threads() noexcept;

namespace detail {
using PartBody = void (*)(void* context, std::int64_t part);
void run_parts(std::int64_t parts, PartBody body, void* context) noexcept;
}  // namespace detail

// Calls body(part) once for each part in 0..parts-1, in any order, on this thread and idle workers; returns when all
// have. The body may not throw, and what it computes may not depend on which thread runs it.
//
// A loop that finds the pool taken by another caller, or runs within a part, runs on its own thread alone.
template <class Body>
void parallel_for(std::int64_t parts, const Body& body) noexcept {
    detail::run_parts(
        parts, [](void* context, std::int64_t part) { (*static_cast<const Body*>(context))(part); },
        const_cast<Body*>(&body));
}

}  // namespace hvd_compress::cpu
