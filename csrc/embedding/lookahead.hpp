// Bagpipe's Oracle Cacher (5.2.2, 5.2.3) as a pure planner: rows of coming batches in, for each step what moves where.
//
// The members are the ranks of a group. Each may train (its batches are not empty), and some of them own the rows of a
// table, row r the owner number r % owners. Every member runs the same planner over the same batches, so it knows what
// the others send, and no request travels.
//
// What is planned is exchange x, between the updates of step x and those of step x + 1; exchange -1 comes before
// the first step. A row that a step has used goes one of these ways:
//   by several ranks: each sends its gradient to the owner, which adds them up in the order of ranks and updates the
//   row; by one alone: that rank updates it, and returns it, with the optimizer's state, unless it alone uses it next,
//   too.
// Then the owner sends the row to those that use it next: with the state where that is one rank alone. What step x + 1
// needs moves in the critical lane, all else in the other; rows that no admitted batch uses next stay with their owner.
// A row of a batch that is admitted, and in no cache by then, is prefetched in the exchange that admits the batch: so
// with a lookahead of L batches, a fetch for batch x follows what step x - L has written back.
//
// Where gradients travel compressed, those of ranks that are among the next users of the row do, and such a rank keeps
// what is lost: the row has the same slot of its cache until then. The others give the row up, and send all exactly.
//
// A batch is admitted if no cache overflows until it is trained: this is how the lookahead falls.
//
// The time of a batch hardly depends on how many are looked ahead (sums of slots take L times the members, little up to
// some hundred batches); most of it is what comes from memory, so what is
// needed soon is asked for early, and what concerns other members alone is only counted.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "divisor.hpp"
#include "row_table.hpp"

namespace hvd_compress::embedding {

struct Rules {
    std::int32_t members;
    std::int32_t member;                 // whose part of each exchange is planned
    std::vector<std::int32_t> owners;    // members
    std::int64_t cache_rows;             // of each member
    std::int64_t lookahead;              // L: batches from the one that is trained on, 1 or more
    bool replicated = false;             // each row of a batch goes to all that train, as in a replicated cache
    std::vector<std::int32_t> trainers;  // members with batches
    bool delayed = true;                 // what is not needed in the next step is synchronised behind it
    bool compressed = false;             // gradients may travel compressed
};

using Indices = std::vector<std::int64_t>;

// What one member does in one lane of an exchange; all lists by member: of owners, of the ranks that have sent, of
// those that get. Positions are among the rows of this member's batch, as they were added. Slots that are sent from may
// be written to in the same exchange: what they hold is taken first.
struct Lane {
    std::vector<Indices> gradients;        // positions whose gradients go to each owner
    std::vector<Indices> compressed;       // the same, of rows that this member uses next, where they travel compressed
    std::vector<Indices> records;          // slots whose rows with states go to each owner
    Indices updated;                       // rows of this owner's shard that it updates
    std::vector<Indices> gradients_from;   // indices into `updated`, by rank
    std::vector<Indices> compressed_from;  // the same, of gradients that are compressed
    std::vector<Indices> records_from;     // rows of the shard, by rank
    std::vector<Indices> rows_to;          // rows of the shard that each rank gets
    std::vector<Indices> records_to;       // the same, with states
    std::vector<Indices> rows_into;        // slots for what each owner sends
    std::vector<Indices> records_into;     // the same, with states
};

// How many rows an exchange is about, over all members.
struct Counts {
    std::int64_t used = 0;         // distinct rows of the batch
    std::int64_t single_user = 0;  // of them used by one rank alone
    std::int64_t kept = 0;         // of these used next by the same rank alone: nothing moves
    std::int64_t sync_now = 0;     // used again in the next step, and not kept
    std::int64_t sync_later = 0;   // used again in a later one that is admitted, and not kept
    std::int64_t evicted = 0;      // in none that is admitted
    std::int64_t prefetched = 0;   // rows that no cache had of the batches that were admitted
    std::int64_t urgent = 0;       // of these by the next step
};

struct Exchange {
    std::array<Lane, 2> lanes;    // critical, and later
    Indices alone;                // positions of rows that this member updates itself
    Indices slots;                // of the rows of its next batch, by position
    std::int64_t admitted = 0;    // the last batch that is
    std::int64_t occupied = 0;    // slots of this member afterwards
    std::int64_t overflows = -1;  // the member in whose cache the next batch does not fit, else -1
    std::int64_t overflow_rows = 0;
    Counts counts;
};

// Rows, as the planner tells them to people and tests.
struct Told {
    Indices single_user, kept, sync_now, sync_later, evicted, prefetched;
    Indices ttl_rows, ttl;  // rows that stay, and the batch that uses each next
};

class Lookahead {
  public:
    explicit Lookahead(Rules rules);

    // Adds the next batch: the distinct rows of member m are rows[offsets[m]] to rows[offsets[m + 1]]. It is fastest
    // where each member's are in the order of UniqueRows. They come from other ranks: where one is not within
    // 0..limit-1, nothing is added, and its position is returned; else -1.
    std::int64_t add(const std::int64_t* rows, const std::vector<std::int64_t>& offsets, std::int64_t limit);

    // Plans the exchange behind the next step; the first call is for exchange -1. The batch of the step that follows
    // must have been added if there is one. Where that does not fit into a cache, `overflows` says so, and there is no
    // exchange.
    const Exchange& plan(Told* told = nullptr);

    // Admits what fits by now, before the next plan() does. Returns the last batch that is admitted.
    std::int64_t fill();

    // What members keep between the last exchange and the next step: slots of this one, by owner, and the rows of this
    // owner's shard, by member. With what they hold, owners have all rows as they are then.
    void kept(std::vector<Indices>* slots, std::vector<Indices>* rows_from) const;

  private:
    static constexpr std::int32_t kNever = RowTable::kNever;

    struct Use {  // of a row by a batch
        std::int64_t row;
        std::uint64_t ranks;    // where one word holds all members
        std::int32_t next_use;  // its index in the batch that uses it next
        std::int32_t position;  // among the rows of this member's batch, or -1
        std::int32_t slot;      // of this member's cache, or -1
        // How many batches after the last one and before the next one that use it; 0: there is none in the window.
        // Negative where the one rank that uses it has kept it since the last one.
        std::int16_t since, until;
    };
    static_assert(sizeof(Use) == 32, "half a line of the cache");
    struct Batch {
        std::vector<Use> uses;
        std::vector<std::uint64_t> ranks;  // words_ of each use, where one word does not hold all members
        std::vector<std::int32_t> mine;    // uses, by position
        std::vector<std::int32_t> from;    // how many slots follow each earlier batch, from `first` on, by member
        std::int32_t first = 0;
        std::vector<std::int32_t> slots;  // that its rows take, by member
    };
    struct Link {
        std::int32_t batch, use, to;
    };
    struct Delivery {
        std::int32_t batch, use, lane;
    };
    struct Fate {            // of a row behind a step
        Use* next;           // by an admitted batch, or null
        std::int32_t alone;  // the member that alone has used it, or -1
        bool kept, now;
    };
    using Ranks = const std::uint64_t*;

    Batch& batch(std::int32_t number) { return batches_[static_cast<std::size_t>(number) & (batches_.size() - 1)]; }
    const Batch& batch(std::int32_t number) const {
        return batches_[static_cast<std::size_t>(number) & (batches_.size() - 1)];
    }
    Ranks users(const Batch& of, const Use& use) const;
    Ranks holders(const Batch& of, const Use& use) const;
    bool has(Ranks set, std::int32_t member) const { return set[member / 64] >> (member % 64) & 1; }
    std::int32_t only(Ranks set) const;  // the one member of a set, or -1
    std::int64_t row_of_shard(const Use& use) const { return owners_.quotient(use.row); }
    std::int32_t owner(const Use& use) const {
        return rules_.owners[static_cast<std::size_t>(owners_.remainder(use.row))];
    }

    void make_room();
    void link(std::int32_t number);
    void use_row(Batch& made, std::int32_t number, std::int64_t row, std::int32_t member);
    bool admit(std::int32_t number);
    void finish_step(Told* told);
    void finish(const Batch& of, Use& use, const Fate& fate);
    void count(const Use& use, const Fate& fate, Told* told);
    void prefetch(std::int32_t number, Told* told);
    void deliver(const Batch& of, Use& use, Lane& lane);

    Rules rules_;
    Divisor owners_;
    std::int32_t words_;
    std::vector<std::uint64_t> trainers_;
    RowTable table_;
    std::vector<Batch> batches_;                     // a ring: number modulo a power of two
    std::int32_t added_ = 0;                         // batches
    std::int32_t step_ = -1;                         // of the exchange that is planned
    std::int32_t admitted_ = -1;                     // the last batch that is
    std::int32_t delivered_ = -1;                    // the same, as of the last exchange
    std::vector<std::int64_t> occupied_;             // slots, by member, behind exchange step_
    std::deque<std::vector<std::int64_t>> changes_;  // of them, by member, in exchanges from step_ + 1 on
    std::vector<std::int32_t> free_slots_;
    std::vector<Link> links_;
    std::vector<std::int64_t> cursors_;
    std::vector<Delivery> deliveries_;
    Exchange exchange_;
};

}  // namespace hvd_compress::embedding
