// Memory for inputs and outputs, none to spare: all around is poisoned for AddressSanitizer, and holds words
// that must stay, as some masked vector stores are not instrumented.
#pragma once

#include <sanitizer/asan_interface.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "payload.hpp"

namespace fuzz {

// Reports what a decoder did wrong, and ends the process with status 1.
[[noreturn]] void fail(const char* what);

class Room {
  public:
    static constexpr std::size_t kCapacity = std::size_t{1} << 20, kGuard = 64, kWord = 8;
    static constexpr std::uint64_t kMark = 0xa5c3e1f00f1e3c5au;

    Room() : base_(static_cast<std::uint8_t*>(std::aligned_alloc(64, kCapacity))) {
        for (std::size_t at = 0; at < kCapacity; at += kWord) std::memcpy(base_ + at, &kMark, kWord);
        __asan_poison_memory_region(base_, kCapacity);
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
        __asan_unpoison_memory_region(base_, kCapacity);
        std::free(base_);
    }

    // Gives `bytes` bytes, `shift` after a multiple of 64.
    std::uint8_t* place(std::size_t bytes, std::size_t shift);

    // Takes them back, and fails where something around them has changed.
    void release();

  private:
    std::uint8_t* base_;
    std::uint8_t* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// The rooms of one call, which release() gives back.
class Memory {
  public:
    static constexpr std::uint8_t kFilled = 0x3c;  // outputs: about 0.01 in fp32 and bf16, 1.06 in fp16

    template <class T = std::uint8_t>
    T* input(const Bytes& bytes, std::size_t size, std::int64_t shift) {
        std::uint8_t* const data = next().place(size, static_cast<std::size_t>(shift) * sizeof(T));
        if (size > 0) std::memcpy(data, bytes.data(), size);
        return reinterpret_cast<T*>(data);
    }
    template <class T = std::uint8_t>
    T* input(const Bytes& bytes, std::int64_t shift) {
        return input<T>(bytes, bytes.size(), shift);
    }
    // `shift` in bytes.
    void* output(std::int64_t bytes, std::int64_t shift = 0) {
        std::uint8_t* const data = next().place(static_cast<std::size_t>(bytes), static_cast<std::size_t>(shift));
        std::memset(data, kFilled, static_cast<std::size_t>(bytes));
        return data;
    }
    void release() {
        while (used_ > 0) rooms_[--used_].release();
    }

  private:
    Room& next() {
        if (used_ == rooms_.size()) std::abort();
        return rooms_[used_++];
    }

    std::array<Room, 16> rooms_;
    std::size_t used_ = 0;
};

}  // namespace fuzz
