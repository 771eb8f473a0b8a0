#include "lookahead.hpp"

#include <algorithm>
#include <utility>

namespace hvd_compress::embedding {
namespace {

constexpr std::int64_t kAhead = 16;  // what is on its way from memory, in rows
enum : std::int32_t { kCritical, kLater };
constexpr int kBucketBits = 10;
constexpr std::int32_t kBuckets = 1 << kBucketBits;  // parts of the table of rows

std::int32_t bucket_of(std::int64_t row) { return static_cast<std::int32_t>(hashed(row, 64 - kBucketBits)); }

void clear(std::vector<Indices>& lists, std::int32_t members) {
    lists.resize(static_cast<std::size_t>(members));
    for (Indices& list : lists) list.clear();
}

void clear(Lane& lane, std::int32_t members) {
    for (std::vector<Indices>* lists :
         {&lane.gradients, &lane.compressed, &lane.records, &lane.gradients_from, &lane.compressed_from,
          &lane.records_from, &lane.rows_to, &lane.records_to, &lane.rows_into, &lane.records_into})
        clear(*lists, members);
    lane.updated.clear();
}

template <class Function>
void for_each_member(const std::uint64_t* set, std::int32_t words, Function function) {
    for (std::int32_t word = 0; word < words; ++word)
        for (std::uint64_t left = set[word]; left != 0; left &= left - 1) function(64 * word + __builtin_ctzll(left));
}

}  // namespace

Lookahead::Lookahead(Rules rules)
    : rules_(std::move(rules)),
      owners_(static_cast<std::int64_t>(rules_.owners.size())),
      words_((rules_.members + 63) / 64),
      trainers_(static_cast<std::size_t>(words_)),
      batches_(2),
      occupied_(static_cast<std::size_t>(rules_.members)) {
    for (const std::int32_t member : rules_.trainers) trainers_[member / 64] |= std::uint64_t{1} << (member % 64);
}

std::int32_t Lookahead::only(Ranks set) const {
    if (words_ == 1) return (*set & (*set - 1)) == 0 && *set != 0 ? __builtin_ctzll(*set) : -1;
    std::int32_t found = -1;
    for (std::int32_t word = 0; word < words_; ++word) {
        if (set[word] == 0) continue;
        if (found >= 0 || (set[word] & (set[word] - 1)) != 0) return -1;
        found = 64 * word + __builtin_ctzll(set[word]);
    }
    return found;
}

Lookahead::Ranks Lookahead::users(const Batch& of, const Use& use) const {
    return words_ == 1 ? &use.ranks : of.ranks.data() + (&use - of.uses.data()) * words_;
}

// The members that have the row in their caches for this use.
Lookahead::Ranks Lookahead::holders(const Batch& of, const Use& use) const {
    return rules_.replicated ? trainers_.data() : users(of, use);
}

// For one batch more in the ring.
void Lookahead::make_room() {
    const std::int32_t oldest = std::max(step_, 0);
    if (static_cast<std::size_t>(added_ - oldest) < batches_.size()) return;
    std::vector<Batch> larger(2 * batches_.size());
    for (std::int32_t number = oldest; number < added_; ++number)
        larger[static_cast<std::size_t>(number) & (larger.size() - 1)] = std::move(batch(number));
    batches_ = std::move(larger);
}

// Tells the last use of each row of a batch which one comes next.
void Lookahead::link(std::int32_t number) {
    const auto count = static_cast<std::int64_t>(links_.size());
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) {
            const Link& coming = links_[static_cast<std::size_t>(i + kAhead)];
            __builtin_prefetch(&batch(coming.batch).uses[static_cast<std::size_t>(coming.use)], 1);
        }
        const Link& link = links_[static_cast<std::size_t>(i)];
        Use& last = batch(link.batch).uses[static_cast<std::size_t>(link.use)];
        last.until = static_cast<std::int16_t>(number - link.batch);
        last.next_use = link.to;
    }
    links_.clear();
}

// A member's batch `number` uses a row.
void Lookahead::use_row(Batch& made, std::int32_t number, std::int64_t row, std::int32_t member) {
    RowTable::Slot& last = table_.at(row, made.first);
    const bool is_new = last.batch != number;
    if (is_new) {
        const auto use = static_cast<std::int32_t>(made.uses.size());
        const std::int32_t since = last.batch == kNever ? 0 : number - last.batch;
        made.uses.push_back({row, 0, 0, -1, -1, static_cast<std::int16_t>(since), 0});
        if (words_ > 1) made.ranks.resize(made.ranks.size() + static_cast<std::size_t>(words_));
        if (since > 0) links_.push_back({last.batch, last.use, use});
        last.batch = number;
        last.use = use;
    }
    Use& use = made.uses[static_cast<std::size_t>(last.use)];
    std::uint64_t* ranks = words_ == 1 ? &use.ranks : made.ranks.data() + last.use * words_;
    ranks[member / 64] |= std::uint64_t{1} << (member % 64);
    if (member == rules_.member) {
        use.position = static_cast<std::int32_t>(made.mine.size());
        made.mine.push_back(last.use);
    }
    // Element 0 is for rows that no batch of the window uses before.
    const std::int32_t from = use.since == 0 ? 0 : number - use.since - made.first + 1;
    std::int32_t* const slots = made.from.data() + from * rules_.members;
    if (!rules_.replicated)
        ++slots[member];
    else if (is_new)
        for_each_member(trainers_.data(), words_, [&](std::int32_t holder) { ++slots[holder]; });
}

std::int64_t Lookahead::add(const std::int64_t* rows, const std::vector<std::int64_t>& offsets, std::int64_t limit) {
    const std::int64_t* const end_of_all = rows + offsets.back();
    const std::int64_t* const bad = std::find_if(rows, end_of_all, [limit](std::int64_t row) {
        return static_cast<std::uint64_t>(row) >= static_cast<std::uint64_t>(limit);
    });
    if (bad != end_of_all) return bad - rows;
    make_room();
    const std::int32_t number = added_++;
    Batch& made = batch(number);
    const auto members = static_cast<std::size_t>(rules_.members);
    made.uses.clear();
    made.ranks.clear();
    made.mine.clear();
    made.first = std::max(step_, 0);
    made.from.assign(static_cast<std::size_t>(number - made.first + 1) * members, 0);
    made.slots.assign(members, 0);
    made.uses.reserve(static_cast<std::size_t>(offsets.back()));
    // Ranks take turns, so that rows which share lines of the table are looked up together.
    cursors_.assign(offsets.begin(), offsets.end() - 1);
    for (std::int32_t bucket = 0; bucket < kBuckets; ++bucket)
        for (std::int32_t member = 0; member < rules_.members; ++member) {
            std::int64_t& at = cursors_[static_cast<std::size_t>(member)];
            const std::int64_t end = offsets[static_cast<std::size_t>(member) + 1];
            for (; at < end && bucket_of(rows[at]) <= bucket; ++at) {
                if (at + kAhead < end) table_.prefetch(rows[at + kAhead]);
                use_row(made, number, rows[at], member);
            }
        }
    link(number);
    for (std::size_t i = 0; i < made.from.size(); ++i) made.slots[i % members] += made.from[i];
    return -1;
}

// Whether the slots for a batch fit everywhere until it is trained, beside those that are promised.
bool Lookahead::admit(std::int32_t number) {
    const auto members = static_cast<std::size_t>(rules_.members);
    const Batch& candidate = batch(number);
    const auto exchanges = static_cast<std::size_t>(number - step_);  // from step_ to the one before its step
    changes_.resize(std::max(changes_.size(), exchanges), std::vector<std::int64_t>(members));
    std::vector<std::vector<std::int64_t>> more(exchanges, std::vector<std::int64_t>(members));
    for (std::size_t from = 0; from * members < candidate.from.size(); ++from) {
        const std::int32_t previous = from == 0 ? kNever : candidate.first + static_cast<std::int32_t>(from) - 1;
        for (std::size_t member = 0; member < members; ++member)
            more[static_cast<std::size_t>(std::max(previous, step_) - step_)][member] +=
                candidate.from[from * members + member];
    }
    for (std::size_t member = 0; member < members; ++member) {
        std::int64_t slots = occupied_[member];
        for (std::size_t at = 0; at < exchanges; ++at) {
            slots += more[at][member] + (at > 0 ? changes_[at - 1][member] : 0);
            if (slots > rules_.cache_rows) {
                exchange_.overflows = static_cast<std::int64_t>(member);
                exchange_.overflow_rows = slots;
                return false;
            }
        }
    }
    for (std::size_t member = 0; member < members; ++member) {
        occupied_[member] += more[0][member];
        for (std::size_t at = 1; at < exchanges; ++at) changes_[at - 1][member] += more[at][member];
        changes_[exchanges - 1][member] -= candidate.slots[member];
    }
    return true;
}

std::int64_t Lookahead::fill() {
    exchange_.overflows = -1;
    while (admitted_ + 1 < added_ && admitted_ < step_ + rules_.lookahead && admit(admitted_ + 1)) ++admitted_;
    return admitted_;
}

// Its owner sends a row to those that use it in a batch.
void Lookahead::deliver(const Batch& of, Use& use, Lane& lane) {
    const Ranks to = holders(of, use);
    const std::int32_t from = owner(use);
    const bool alone = only(to) >= 0;
    if (from == rules_.member)
        for_each_member(to, words_, [&](std::int32_t member) {
            (alone ? lane.records_to : lane.rows_to)[static_cast<std::size_t>(member)].push_back(row_of_shard(use));
        });
    if (!has(to, rules_.member)) return;
    if (use.slot < 0) {
        if (free_slots_.empty()) free_slots_.push_back(static_cast<std::int32_t>(exchange_.occupied));
        use.slot = free_slots_.back();
        free_slots_.pop_back();
        ++exchange_.occupied;
    }
    (alone ? lane.records_into : lane.rows_into)[static_cast<std::size_t>(from)].push_back(use.slot);
}

void Lookahead::count(const Use& use, const Fate& fate, Told* told) {
    Counts& counts = exchange_.counts;
    const bool stays = fate.next != nullptr, next_step = use.until == 1;
    counts.single_user += fate.alone >= 0;
    counts.kept += fate.kept;
    counts.sync_now += stays && !fate.kept && next_step;
    counts.sync_later += stays && !fate.kept && !next_step;
    counts.evicted += !stays;
    if (told == nullptr) return;
    if (fate.alone >= 0) told->single_user.push_back(use.row);
    (fate.kept   ? told->kept
     : !stays    ? told->evicted
     : next_step ? told->sync_now
                 : told->sync_later)
        .push_back(use.row);
    if (stays) {
        told->ttl_rows.push_back(use.row);
        told->ttl.push_back(step_ + use.until);
    }
}

// What this member does with a row that the step has used: who sends what to its owner, and who has it next.
void Lookahead::finish(const Batch& of, Use& use, const Fate& fate) {
    const std::int32_t to = owner(use);
    const auto lane_number = fate.now ? kCritical : kLater;
    Lane& lane = exchange_.lanes[static_cast<std::size_t>(lane_number)];
    if (fate.alone == rules_.member) {
        exchange_.alone.push_back(use.position);
        if (!fate.kept) lane.records[static_cast<std::size_t>(to)].push_back(use.slot);
    }
    if (fate.alone >= 0) {
        if (!fate.kept && to == rules_.member)
            lane.records_from[static_cast<std::size_t>(fate.alone)].push_back(row_of_shard(use));
    } else {
        const Ranks next_users =
            rules_.compressed && fate.next != nullptr ? users(batch(step_ + use.until), *fate.next) : nullptr;
        const auto compressed = [&](std::int32_t member) { return next_users != nullptr && has(next_users, member); };
        if (use.position >= 0)
            (compressed(rules_.member) ? lane.compressed : lane.gradients)[static_cast<std::size_t>(to)].push_back(
                use.position);
        if (to == rules_.member) {
            const auto place = static_cast<std::int64_t>(lane.updated.size());
            for_each_member(users(of, use), words_, [&](std::int32_t member) {
                (compressed(member) ? lane.compressed_from : lane.gradients_from)[static_cast<std::size_t>(member)]
                    .push_back(place);
            });
            lane.updated.push_back(row_of_shard(use));
        }
    }
    if (fate.kept)
        fate.next->since = static_cast<std::int16_t>(-fate.next->since);
    else if (fate.next != nullptr)
        deliveries_.push_back({step_ + use.until, use.next_use, lane_number});
    if (use.slot < 0) return;
    if (fate.next != nullptr && has(holders(batch(step_ + use.until), *fate.next), rules_.member)) {
        fate.next->slot = use.slot;
    } else {
        free_slots_.push_back(use.slot);
        --exchange_.occupied;
    }
}

void Lookahead::finish_step(Told* told) {
    Batch& of = batch(step_);
    const auto count_of = of.uses.size();
    exchange_.counts.used = static_cast<std::int64_t>(count_of);
    std::vector<Use*> batches;  // from this one on, as far as they are admitted
    for (std::int32_t number = step_; number <= admitted_; ++number) batches.push_back(batch(number).uses.data());
    const auto ahead = static_cast<std::int16_t>(admitted_ - step_);
    for (std::size_t index = 0; index < count_of; ++index) {
        if (index + static_cast<std::size_t>(kAhead) < count_of) {
            const Use& coming = of.uses[index + static_cast<std::size_t>(kAhead)];
            if (coming.until <= ahead)
                __builtin_prefetch(batches[static_cast<std::size_t>(coming.until)] + coming.next_use, 1);
        }
        Use& use = of.uses[index];
        const bool stays = use.until != 0 && use.until <= ahead;
        Fate fate;
        fate.next = stays ? batches[static_cast<std::size_t>(use.until)] + use.next_use : nullptr;
        fate.now = stays && (use.until == 1 || !rules_.delayed);
        const Ranks ranks = holders(of, use), next = stays ? holders(batch(step_ + use.until), *fate.next) : nullptr;
        fate.alone = only(ranks);
        fate.kept = stays && fate.alone >= 0 && only(next) == fate.alone;
        count(use, fate, told);
        if (has(ranks, rules_.member) || owner(use) == rules_.member || (stays && has(next, rules_.member)))
            finish(of, use, fate);
    }
    for (const Delivery& delivery : deliveries_) {  // when all slots are free that will be
        Batch& to = batch(delivery.batch);
        deliver(to, to.uses[static_cast<std::size_t>(delivery.use)],
                exchange_.lanes[static_cast<std::size_t>(delivery.lane)]);
    }
}

// What no cache has of a batch that is admitted now.
void Lookahead::prefetch(std::int32_t number, Told* told) {
    Batch& of = batch(number);
    Lane& lane = exchange_.lanes[number == step_ + 1 ? kCritical : kLater];
    const std::int32_t latest = number - std::max(step_, 0);  // a later use sends it to this one
    for (Use& use : of.uses) {
        if (use.since != 0 && use.since <= latest) continue;
        ++exchange_.counts.prefetched;
        exchange_.counts.urgent += number == step_ + 1;
        if (told != nullptr) told->prefetched.push_back(use.row);
        if (has(holders(of, use), rules_.member) || owner(use) == rules_.member) deliver(of, use, lane);
    }
}

const Exchange& Lookahead::plan(Told* told) {
    for (Lane& lane : exchange_.lanes) clear(lane, rules_.members);
    exchange_.alone.clear();
    exchange_.slots.clear();
    exchange_.counts = {};
    deliveries_.clear();
    fill();
    const bool goes_on = step_ + 1 < added_;
    if (goes_on && admitted_ == step_) return exchange_;
    exchange_.overflows = -1;

    if (step_ >= 0) finish_step(told);
    for (std::int32_t number = delivered_ + 1; number <= admitted_; ++number) prefetch(number, told);
    if (goes_on)
        for (const std::int32_t use : batch(step_ + 1).mine)
            exchange_.slots.push_back(batch(step_ + 1).uses[static_cast<std::size_t>(use)].slot);
    exchange_.admitted = delivered_ = admitted_;
    ++step_;
    if (!changes_.empty()) {
        for (std::size_t member = 0; member < occupied_.size(); ++member) occupied_[member] += changes_.front()[member];
        changes_.pop_front();
    }
    return exchange_;
}

void Lookahead::kept(std::vector<Indices>* slots, std::vector<Indices>* rows_from) const {
    clear(*slots, rules_.members);
    clear(*rows_from, rules_.members);
    for (std::int32_t number = std::max(step_, 0); number <= admitted_; ++number)
        for (const Use& use : batch(number).uses) {
            if (use.since >= 0) continue;
            const std::int32_t keeper = only(holders(batch(number), use)), home = owner(use);
            if (keeper == rules_.member) (*slots)[static_cast<std::size_t>(home)].push_back(use.slot);
            if (home == rules_.member) (*rows_from)[static_cast<std::size_t>(keeper)].push_back(row_of_shard(use));
        }
}

}  // namespace hvd_compress::embedding
