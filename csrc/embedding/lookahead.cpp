#include "lookahead.hpp"

#include <algorithm>
#include <utility>

namespace hvd_compress::embedding {
namespace {

constexpr std::int64_t kAhead = 16;  // rows whose entries are on their way from memory
constexpr int kCritical = 0, kLater = 1;

void clear(std::vector<Indices>& lists, std::int32_t members) {
    lists.resize(static_cast<std::size_t>(members));
    for (Indices& list : lists) list.clear();
}

void clear(Lane& lane, std::int32_t members) {
    for (std::vector<Indices>* lists : {&lane.gradients, &lane.records, &lane.gradients_from, &lane.records_from,
                                        &lane.rows_to, &lane.records_to, &lane.rows_into, &lane.records_into})
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
      words_((rules_.members + 63) / 64),
      trainers_(static_cast<std::size_t>(words_)),
      occupied_(static_cast<std::size_t>(rules_.members)) {
    for (const std::int32_t member : rules_.trainers) trainers_[member / 64] |= std::uint64_t{1} << (member % 64);
}

std::int32_t Lookahead::only(Ranks set) const {
    std::int32_t found = -1;
    for (std::int32_t word = 0; word < words_; ++word) {
        if (set[word] == 0) continue;
        if (found >= 0 || (set[word] & (set[word] - 1)) != 0) return -1;
        found = 64 * word + __builtin_ctzll(set[word]);
    }
    return found;
}

void Lookahead::add(const std::int64_t* rows, const std::vector<std::int64_t>& offsets) {
    const std::int64_t number = added_++;
    Batch made;
    if (!spare_.empty()) {
        made = std::move(spare_.back());
        spare_.pop_back();
    }
    made.uses.clear();
    made.ranks.clear();
    made.mine.clear();
    for (std::int32_t member = 0; member < rules_.members; ++member) {
        const std::int64_t end = offsets[static_cast<std::size_t>(member) + 1];
        for (std::int64_t i = offsets[static_cast<std::size_t>(member)]; i < end; ++i) {
            if (i + kAhead < end) table_.prefetch(rows[i + kAhead]);
            if (free_entries_.empty()) {
                free_entries_.push_back(static_cast<std::int32_t>(entries_.size()));
                entries_.push_back({});
            }
            const std::int32_t fresh = free_entries_.back(), entry = table_.find_or_insert(rows[i], fresh);
            Entry& known = entries_[static_cast<std::size_t>(entry)];
            if (entry == fresh) {
                free_entries_.pop_back();
                known = {kNever, 0, -1};
            }
            if (known.batch != number) {
                const auto use = static_cast<std::int32_t>(made.uses.size());
                made.uses.push_back({rows[i], known.batch, kNever, 0, entry, -1});
                made.ranks.resize(made.ranks.size() + static_cast<std::size_t>(words_));
                if (known.batch != kNever) {
                    Use& before = batch(known.batch).uses[static_cast<std::size_t>(known.use)];
                    before.next = number;
                    before.next_use = use;
                }
                known.batch = number;
                known.use = use;
            }
            made.ranks[static_cast<std::size_t>(known.use * words_ + member / 64)] |= std::uint64_t{1} << (member % 64);
            if (member == rules_.member) made.mine.push_back(known.use);
        }
    }
    batches_.push_back(std::move(made));
}

std::int64_t Lookahead::fill() {
    exchange_.overflows = -1;
    while (admitted_ + 1 < added_ && admitted_ < step_ + rules_.lookahead && admit(admitted_ + 1)) ++admitted_;
    return admitted_;
}

// Whether the slots for a batch fit everywhere until it is trained, beside those that are promised.
bool Lookahead::admit(std::int64_t number) {
    const auto members = static_cast<std::size_t>(rules_.members);
    const Batch& candidate = batch(number);
    std::vector<std::vector<std::int64_t>> more(static_cast<std::size_t>(number - step_ + 1),
                                                std::vector<std::int64_t>(members));  // by exchange, from step_ on
    for (std::size_t use = 0; use < candidate.uses.size(); ++use) {
        const std::int64_t at = std::max(candidate.uses[use].previous, step_);
        for_each_member(holders(candidate, static_cast<std::int64_t>(use)), words_, [&](std::int32_t member) {
            ++more[static_cast<std::size_t>(at - step_)][static_cast<std::size_t>(member)];
            --more.back()[static_cast<std::size_t>(member)];
        });
    }
    changes_.resize(std::max(changes_.size(), more.size() - 1), std::vector<std::int64_t>(members));
    for (std::size_t member = 0; member < members; ++member) {
        std::int64_t slots = occupied_[member];
        for (std::size_t at = 0; at < more.size(); ++at) {
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
        for (std::size_t at = 1; at < more.size(); ++at) changes_[at - 1][member] += more[at][member];
    }
    return true;
}

// The member that keeps a row from one use to the next, as it alone has both; or -1.
std::int32_t Lookahead::keeper(const Batch& of, std::int64_t index) const {
    const Use& use = of.uses[static_cast<std::size_t>(index)];
    const std::int32_t alone = only(holders(of, index));
    return alone >= 0 && admitted(use.next) && only(next_holders(use)) == alone ? alone : -1;
}

Lane& Lookahead::lane_of(const Use& use) {
    const bool now = admitted(use.next) && (use.next == step_ + 1 || !rules_.delayed);
    return exchange_.lanes[now ? kCritical : kLater];
}

void Lookahead::release(Entry& entry) {
    if (entry.slot < 0) return;
    free_slots_.push_back(entry.slot);
    entry.slot = -1;
    --exchange_.occupied;
}

// A rank that has updated a row returns it.
void Lookahead::returned(const Use& use, std::int32_t from, Lane& lane) {
    const auto owners = static_cast<std::int64_t>(rules_.owners.size());
    const std::int32_t owner = rules_.owners[static_cast<std::size_t>(use.row % owners)];
    if (from == rules_.member)
        lane.records[static_cast<std::size_t>(owner)].push_back(entries_[static_cast<std::size_t>(use.entry)].slot);
    if (owner == rules_.member) lane.records_from[static_cast<std::size_t>(from)].push_back(use.row / owners);
}

// What the step has made of a row: who sends what to its owner.
void Lookahead::collect(const Use& use, std::int64_t index) {
    const Batch& of = batches_.front();
    Lane& lane = lane_of(use);
    const std::int32_t alone = only(holders(of, index)), position = positions_[static_cast<std::size_t>(index)];
    if (alone >= 0) {
        if (alone == rules_.member) exchange_.alone.push_back(position);
        if (keeper(of, index) < 0) returned(use, alone, lane);
        return;
    }
    const auto owners = static_cast<std::int64_t>(rules_.owners.size());
    const std::int32_t owner = rules_.owners[static_cast<std::size_t>(use.row % owners)];
    if (position >= 0) lane.gradients[static_cast<std::size_t>(owner)].push_back(position);
    if (owner != rules_.member) return;
    for_each_member(ranks(of, index), words_, [&](std::int32_t member) {
        lane.gradients_from[static_cast<std::size_t>(member)].push_back(static_cast<std::int64_t>(lane.updated.size()));
    });
    lane.updated.push_back(use.row / owners);
}

// Its owner sends a row to those that use it next.
void Lookahead::deliver(const Use& use, Ranks to, Lane& lane) {
    const auto owners = static_cast<std::int64_t>(rules_.owners.size());
    const std::int32_t owner = rules_.owners[static_cast<std::size_t>(use.row % owners)];
    const bool alone = only(to) >= 0;
    if (owner == rules_.member)
        for_each_member(to, words_, [&](std::int32_t member) {
            (alone ? lane.records_to : lane.rows_to)[static_cast<std::size_t>(member)].push_back(use.row / owners);
        });
    if (!has(to, rules_.member)) return;
    Entry& entry = entries_[static_cast<std::size_t>(use.entry)];
    if (entry.slot < 0) {
        if (free_slots_.empty()) free_slots_.push_back(static_cast<std::int32_t>(exchange_.occupied));
        entry.slot = free_slots_.back();
        free_slots_.pop_back();
        ++exchange_.occupied;
    }
    (alone ? lane.records_into : lane.rows_into)[static_cast<std::size_t>(owner)].push_back(entry.slot);
}

const Exchange& Lookahead::plan(Told* told) {
    for (Lane& lane : exchange_.lanes) clear(lane, rules_.members);
    exchange_.alone.clear();
    exchange_.slots.clear();
    exchange_.counts = {};
    fill();
    if (step_ + 1 < added_ && admitted_ == step_) return exchange_;
    exchange_.overflows = -1;

    Counts& counts = exchange_.counts;
    const auto tell = [&](std::int64_t& number, Indices Told::* list, std::int64_t row) {
        ++number;
        if (told != nullptr) (told->*list).push_back(row);
    };
    if (step_ >= 0) {
        const Batch& of = batches_.front();
        const auto count = static_cast<std::int64_t>(of.uses.size());
        counts.used = count;
        positions_.assign(of.uses.size(), -1);
        for (std::size_t position = 0; position < of.mine.size(); ++position)
            positions_[static_cast<std::size_t>(of.mine[position])] = static_cast<std::int32_t>(position);
        for (std::int64_t index = 0; index < count; ++index) {
            const Use& use = of.uses[static_cast<std::size_t>(index)];
            collect(use, index);
            const std::int32_t kept = keeper(of, index);
            if (only(holders(of, index)) >= 0) tell(counts.single_user, &Told::single_user, use.row);
            if (kept >= 0) {
                batch(use.next).uses[static_cast<std::size_t>(use.next_use)].keeper = kept;
                tell(counts.kept, &Told::kept, use.row);
            } else if (!admitted(use.next)) {
                tell(counts.evicted, &Told::evicted, use.row);
            } else if (use.next == step_ + 1) {
                tell(counts.sync_now, &Told::sync_now, use.row);
            } else {
                tell(counts.sync_later, &Told::sync_later, use.row);
            }
            if (told != nullptr && admitted(use.next)) {
                told->ttl_rows.push_back(use.row);
                told->ttl.push_back(use.next);
            }
            Entry& entry = entries_[static_cast<std::size_t>(use.entry)];
            if (!admitted(use.next) || !has(next_holders(use), rules_.member)) release(entry);
            if (use.next == kNever) {
                table_.erase(use.row);
                free_entries_.push_back(use.entry);
            }
        }
        for (std::int64_t index = 0; index < count; ++index) {
            const Use& use = of.uses[static_cast<std::size_t>(index)];
            if (admitted(use.next) && keeper(of, index) < 0) deliver(use, next_holders(use), lane_of(use));
        }
    }
    for (std::int64_t number = delivered_ + 1; number <= admitted_; ++number) {
        const Batch& of = batch(number);
        Lane& lane = exchange_.lanes[number == step_ + 1 ? kCritical : kLater];
        for (std::size_t index = 0; index < of.uses.size(); ++index) {
            const Use& use = of.uses[index];
            if (use.previous != kNever && use.previous >= std::max(step_, std::int64_t{0})) continue;
            deliver(use, holders(of, static_cast<std::int64_t>(index)), lane);
            tell(counts.prefetched, &Told::prefetched, use.row);
        }
    }
    if (step_ >= 0) {
        spare_.push_back(std::move(batches_.front()));
        batches_.pop_front();
        ++first_;
    }
    if (step_ + 1 < added_)
        for (const std::int32_t use : batch(step_ + 1).mine)
            exchange_.slots.push_back(
                entries_[static_cast<std::size_t>(batch(step_ + 1).uses[static_cast<std::size_t>(use)].entry)].slot);
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
    const auto owners = static_cast<std::int64_t>(rules_.owners.size());
    for (std::int64_t number = step_; number <= admitted_; ++number)
        for (const Use& use : batch(number).uses) {
            if (use.keeper < 0) continue;
            const auto owner = static_cast<std::size_t>(rules_.owners[static_cast<std::size_t>(use.row % owners)]);
            if (use.keeper == rules_.member)
                (*slots)[owner].push_back(entries_[static_cast<std::size_t>(use.entry)].slot);
            if (static_cast<std::int32_t>(owner) == rules_.member)
                (*rows_from)[static_cast<std::size_t>(use.keeper)].push_back(use.row / owners);
        }
}

}  // namespace hvd_compress::embedding
