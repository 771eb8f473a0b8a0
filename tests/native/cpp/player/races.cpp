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
    if (next_ >= ~Stamp{0} - 4096) {
        std::fputs("too many barriers for one run: play fewer cases at once\n", stderr);
        std::exit(1);
    }
    blocks_.insert(blocks_.end(), static_cast<std::size_t>(threads / kStep), block);
    return first;
}

const Released& Races::take_ticket(const void* at, std::uint32_t block, Stamp since) {
    Released& released = released_[at];
    released.resize(std::max(released.size(), std::size_t{block} + 1));
    released[block] = since;
    return released;
}

void Races::forget(std::size_t offset, std::size_t bytes) {
    std::memset(static_cast<void*>(cells_ + offset), 0, bytes * sizeof(Cell));
}

bool Races::is_of(Stamp stamp, const Accessor& who) const {
    return stamp >= launch_ && blocks_[(stamp - launch_) / kStep] == who.block;
}

bool Races::is_unordered(Stamp stamp, const Accessor& who) const {
    if (stamp < launch_ || stamp == who.stamp) return false;
    const std::uint32_t block = blocks_[(stamp - launch_) / kStep];
    if (block == who.block) return stamp >= who.since;
    return block >= who.acquired->size() || stamp >= (*who.acquired)[block];
}

bool Races::are_unordered(const Users& users, const Accessor& who) const {
    bool unordered = false;
    for (const auto& pair : users.of) {
        for (const Stamp stamp : pair) unordered |= is_unordered(stamp, who);
    }
    return unordered;
}

void Races::note(Users& users, const Accessor& who) const {
    // The pair of this block; else one that no block has in this launch.
    for (auto& pair : users.of) {
        if (!is_of(pair[0], who)) continue;
        if (pair[0] == who.stamp || pair[1] == who.stamp) return;
        const bool both = is_unordered(pair[0], who);
        pair[both] = who.stamp;
        if (!both) pair[1] = 0;
        return;
    }
    for (auto& pair : users.of) {
        if (pair[0] >= launch_) continue;
        pair[0] = who.stamp;
        pair[1] = 0;
        return;
    }
}

bool Races::read(const Accessor& who, std::size_t offset, std::size_t bytes) {
    bool ordered = true;
    for (Cell* cell = cells_ + offset; cell < cells_ + offset + bytes; ++cell) {
        ordered &= !is_unordered(cell->writer, who) && !are_unordered(cell->adders, who);
        note(cell->readers, who);
    }
    return ordered;
}

bool Races::write(const Accessor& who, std::size_t offset, std::size_t bytes) {
    bool ordered = true;
    for (Cell* cell = cells_ + offset; cell < cells_ + offset + bytes; ++cell) {
        ordered &= !is_unordered(cell->writer, who) && !are_unordered(cell->adders, who);
        ordered &= !are_unordered(cell->readers, who);
        cell->writer = who.stamp;
    }
    return ordered;
}

bool Races::add(const Accessor& who, std::size_t offset, std::size_t bytes) {
    bool ordered = true;
    for (Cell* cell = cells_ + offset; cell < cells_ + offset + bytes; ++cell) {
        ordered &= !is_unordered(cell->writer, who) && !are_unordered(cell->readers, who);
        note(cell->adders, who);
    }
    return ordered;
}

}  // namespace hvd_compress::fibers
