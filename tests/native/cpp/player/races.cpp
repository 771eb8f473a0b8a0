#include "races.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hvd_compress::fibers {

Races::Races(std::size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("memory of races");
        std::exit(1);
    }
    cells_ = static_cast<Cell*>(memory);
}

void Races::begin_launch() {
    launch_ = next_;
    blocks_.clear();
    released_.clear();
}

Stamp Races::begin_epoch(std::uint32_t block, int threads) {
    const Stamp first = next_;
    next_ += static_cast<Stamp>(threads);
    if (next_ >= kAtomic) {
        std::fputs("too many barriers for one run: play fewer cases at once\n", stderr);
        std::exit(1);
    }
    blocks_.insert(blocks_.end(), static_cast<std::size_t>(threads / kStep), block);
    return first;
}

std::vector<Stamp> Races::take_ticket(std::uint32_t block, Stamp since) {
    released_.resize(std::max(released_.size(), std::size_t{block} + 1));
    released_[block] = since;
    return released_;
}

void Races::forget(std::size_t offset, std::size_t bytes) {
    std::memset(static_cast<void*>(cells_ + offset), 0, bytes * sizeof(Cell));
}

bool Races::is_unordered(Stamp stamp, const Accessor& who) const {
    stamp &= ~kAtomic;
    if (stamp < launch_ || stamp == who.stamp) return false;
    const std::uint32_t block = blocks_[(stamp - launch_) / kStep];
    if (block == who.block) return stamp >= who.since;
    return block >= who.acquired->size() || stamp >= (*who.acquired)[block];
}

bool Races::read(const Accessor& who, std::size_t offset, std::size_t bytes) {
    bool ordered = true;
    for (Cell* cell = cells_ + offset; cell < cells_ + offset + bytes; ++cell) {
        ordered &= !is_unordered(cell->writer, who);
        if (cell->readers[0] == who.stamp || cell->readers[1] == who.stamp) continue;
        // The one that goes is ordered before this one, if one of them is.
        const bool second = is_unordered(cell->readers[0], who);
        cell->readers[second] = who.stamp;
    }
    return ordered;
}

bool Races::write(const Accessor& who, std::size_t offset, std::size_t bytes, bool atomic) {
    bool ordered = true;
    for (Cell* cell = cells_ + offset; cell < cells_ + offset + bytes; ++cell) {
        ordered &= (atomic && (cell->writer & kAtomic) != 0) || !is_unordered(cell->writer, who);
        for (const Stamp reader : cell->readers) ordered &= !is_unordered(reader, who);
        cell->writer = who.stamp | (atomic ? kAtomic : 0);
    }
    return ordered;
}

}  // namespace hvd_compress::fibers
