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
// A batch is admitted if no cache overflows until it is trained: this is how the lookahead falls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

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
};

using Indices = std::vector<std::int64_t>;

// What one member does in one lane of an exchange; all lists by member: of owners, of the ranks that have sent, of
// those that get. Positions are among the rows of this member's batch, as they were added. Slots that are sent from may
// be written to in the same exchange: what they hold is taken first.
struct Lane {
    std::vector<Indices> gradients;       // positions whose gradients go to each owner
    std::vector<Indices> records;         // slots whose rows with states go to each owner
    Indices updated;                      // rows of this owner's shard that it updates
    std::vector<Indices> gradients_from;  // indices into `updated`, by rank
    std::vector<Indices> records_from;    // rows of the shard, by rank
    std::vector<Indices> rows_to;         // rows of the shard that each rank gets
    std::vector<Indices> records_to;      // the same, with states
    std::vector<Indices> rows_into;       // slots for what each owner sends
    std::vector<Indices> records_into;    // the same, with states
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

    // Adds the next batch: the distinct rows of member m are rows[offsets[m]] to rows[offsets[m + 1]].
    void add(const std::int64_t* rows, const std::vector<std::int64_t>& offsets);
    std::int64_t added() const { return added_; }

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
    static constexpr std::int64_t kNever = -1;

    struct Use {  // of a row by a batch
        std::int64_t row;
        std::int64_t previous, next;  // batches, or kNever
        std::int32_t next_use;        // its index there
        std::int32_t entry;
        std::int32_t keeper;  // member that has kept the row since `previous`, or -1
    };
    struct Entry {           // of a row that a batch uses that is to be trained
        std::int64_t batch;  // the last one
        std::int32_t use;
        std::int32_t slot;  // of this member, or -1
    };
    struct Batch {
        std::vector<Use> uses;
        std::vector<std::uint64_t> ranks;  // words_ of each use
        std::vector<std::int32_t> mine;    // uses, by position
    };
    using Ranks = const std::uint64_t*;

    Batch& batch(std::int64_t number) { return batches_[static_cast<std::size_t>(number - first_)]; }
    const Batch& batch(std::int64_t number) const { return batches_[static_cast<std::size_t>(number - first_)]; }
    Ranks ranks(const Batch& of, std::int64_t use) const { return of.ranks.data() + use * words_; }
    Ranks holders(const Batch& of, std::int64_t use) const {
        return rules_.replicated ? trainers_.data() : ranks(of, use);
    }
    bool has(Ranks set, std::int32_t member) const { return set[member / 64] >> (member % 64) & 1; }
    std::int32_t only(Ranks set) const;  // the one member of a set, or -1
    Ranks next_holders(const Use& use) const { return holders(batch(use.next), use.next_use); }
    std::int32_t keeper(const Batch& of, std::int64_t index) const;
    bool admitted(std::int64_t number) const { return number != kNever && number <= admitted_; }

    bool admit(std::int64_t number);
    void collect(const Use& use, std::int64_t index);
    void returned(const Use& use, std::int32_t from, Lane& lane);
    void deliver(const Use& use, Ranks to, Lane& lane);
    void release(Entry& entry);
    Lane& lane_of(const Use& use);

    Rules rules_;
    std::int32_t words_;
    std::vector<std::uint64_t> trainers_;
    RowTable table_;
    std::vector<Entry> entries_;
    std::vector<std::int32_t> free_entries_;
    std::deque<Batch> batches_;
    std::vector<Batch> spare_;
    std::int64_t first_ = 0;                         // the number of batches_.front()
    std::int64_t added_ = 0;                         // batches
    std::int64_t step_ = -1;                         // of the exchange that is planned
    std::int64_t admitted_ = -1;                     // the last batch that is
    std::int64_t delivered_ = -1;                    // the same, as of the last exchange
    std::vector<std::int64_t> occupied_;             // slots, by member, behind exchange step_
    std::deque<std::vector<std::int64_t>> changes_;  // of them, by member, in exchanges from step_ + 1 on
    std::vector<std::int32_t> free_slots_;
    std::vector<std::int32_t> positions_;  // of this member's rows, by use of the batch
    Exchange exchange_;
};

}  // namespace hvd_compress::embedding
