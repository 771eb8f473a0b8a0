// Who last read and wrote each byte of the device's memory, and whether that was ordered before who does it now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_compress::fibers {

// A thread between two barriers. Threads of a block have neighbouring stamps, those of a later time larger ones.
using Stamp = std::uint32_t;

struct Accessor {
    Stamp stamp;  // of the thread, now
    Stamp since;  // of its block's first thread: what is below was before its last barrier
    std::uint32_t block;
    const std::vector<Stamp>* acquired;  // of each block: what is below was before this one's ticket
};

class Races {
  public:
    explicit Races(std::size_t bytes);

    // All that was done before is ordered before what follows.
    void begin_launch();

    // Stamps for the threads of a block, from now to its next barrier: the first one.
    Stamp begin_epoch(std::uint32_t block, int threads);

    // A block takes a ticket: what lies below `since` of it is released, and what blocks have released, returned.
    std::vector<Stamp> take_ticket(std::uint32_t block, Stamp since);

    // Memory from `offset` on is as if nobody had used it.
    void forget(std::size_t offset, std::size_t bytes);

    // Whether the access is ordered after all others that it does not get on with.
    bool read(const Accessor& who, std::size_t offset, std::size_t bytes);
    bool write(const Accessor& who, std::size_t offset, std::size_t bytes, bool atomic);

  private:
    // Of all readers since the last write two are known: of different threads, if there were two, and the first one of
    // another block, if there was one.
    struct Cell {
        Stamp writer, readers[2];
    };
    static constexpr Stamp kAtomic = 1u << 31;
    static constexpr int kStep = 32;  // of stamps: a block has a multiple of so many threads

    bool is_unordered(Stamp stamp, const Accessor& who) const;

    Cell* cells_;
    Stamp launch_ = kStep, next_ = kStep;
    std::vector<std::uint32_t> blocks_;  // of each kStep stamps of this launch
    std::vector<Stamp> released_;        // of each block
};

}  // namespace hvd_compress::fibers
