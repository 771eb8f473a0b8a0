#include "memory.hpp"

#include <cstdio>

namespace fuzz {
namespace {

// Poisoned memory, which only this file may touch: byte by byte, as no library function may.
__attribute__((no_sanitize("address"), noinline)) void mark(std::uint8_t* at, std::size_t bytes) {
    for (volatile std::uint8_t* to = at; bytes > 0; --bytes, ++to) {
        *to = static_cast<std::uint8_t>(Room::kMark >> reinterpret_cast<std::uintptr_t>(to) % 8 * 8);
    }
}

__attribute__((no_sanitize("address"), noinline)) bool is_marked(const std::uint8_t* at, std::size_t bytes) {
    bool same = true;
    for (const volatile std::uint8_t* from = at; bytes > 0; --bytes, ++from) {
        same &= *from == static_cast<std::uint8_t>(Room::kMark >> reinterpret_cast<std::uintptr_t>(from) % 8 * 8);
    }
    return same;
}

}  // namespace

void fail(const char* what) {
    std::fprintf(stderr, "finding: %s\n", what);
    std::exit(1);
}

std::uint8_t* Room::place(std::size_t bytes, std::size_t shift) {
    if (bytes + shift + 3 * kGuard > kCapacity) fail("the fuzzer itself: too large a payload");
    data_ = base_ + kGuard + shift;
    bytes_ = bytes;
    mark(data_ - kGuard, kGuard);
    mark(data_ + bytes, kGuard);
    __asan_unpoison_memory_region(data_, bytes);
    return data_;
}

void Room::release() {
    __asan_poison_memory_region(base_, kGuard + static_cast<std::size_t>(data_ - base_) + bytes_);
    if (!is_marked(data_ - kGuard, kGuard)) fail("bytes before a buffer have changed");
    if (!is_marked(data_ + bytes_, kGuard)) fail("bytes after a buffer have changed");
}

}  // namespace fuzz
