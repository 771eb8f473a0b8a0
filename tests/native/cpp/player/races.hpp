// Who last used each byte of the device's memory, and whether that was ordered before who does it now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace hvd_compress::fibers {

// A thread between two barriers. Threads of a block have neighbouring stamps, those of a later time larger ones.
using Stamp = std::uint32_t;

// Of each block: what is below was released.
using Released = std::vector<Stamp>;

struct Accessor {
    Stamp stamp;  // of the thread, now
    Stamp since;  // of its block's first thread: what is below was before its last barrier
    std::uint32_t block;
    const Released* acquired;  // before its last barrier
};

class Races {
  public:
    explicit Races(std::size_t bytes);

    // All that was done before is ordered before what follows.
    void begin_launch();

    // Stamps for the threads of a block, from now to its next barrier: the first one.
    Stamp begin_epoch(std::uint32_t block, int threads);

    // A block takes a ticket at an address: what lies below `since` of it is released to who takes a later one there.
    // Returns what it acquires: what was released there before.
    const Released& take_ticket(const void* at, std::uint32_t block, Stamp since);

    // Memory from `offset` on is as if nobody had used it.
    void forget(std::size_t offset, std::size_t bytes);

    // Whether the access is ordered after all others that it does not get on with.
    bool read(const Accessor& who, std::size_t offset, std::size_t bytes);
    bool write(const Accessor& who, std::size_t offset, std::size_t bytes);
    bool add(const Accessor& who, std::size_t offset, std::size_t bytes);  // an atomic

  private:
    // Of all who did the same, two threads each of two blocks, where there are as many whom nothing orders: one of them
    // is another one than who comes next, and one of another block.
    struct Users {
        Stamp of[2][2];
    };
    struct Cell {
        Stamp writer;
        Users readers, adders;
    };
    static constexpr int kStep = 32;  // of stamps: the number of a block's threads is a multiple of it

    bool is_unordered(Stamp stamp, const Accessor& who) const;
    bool are_unordered(const Users& users, const Accessor& who) const;
    bool is_of(Stamp stamp, const Accessor& who) const;
    void note(Users& users, const Accessor& who) const;

    Cell* cells_;
    Stamp launch_ = kStep, next_ = kStep;
    std::vector<std::uint32_t> blocks_;  // of each kStep stamps of this launch
    std::map<const void*, Released> released_;
};

}  // namespace hvd_compress::fibers
