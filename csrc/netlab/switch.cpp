#include "switch.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hvd_compress::netlab {
namespace {

Nanoseconds duration(std::size_t length, double bytes_per_s) {
    return static_cast<Nanoseconds>(std::llround(static_cast<double>(length) * 1e9 / bytes_per_s));
}

}  // namespace

Switch::Switch(int hosts, Link link)
    : lines_(static_cast<std::size_t>(hosts)),
      pairs_(static_cast<std::size_t>(hosts) * static_cast<std::size_t>(hosts)) {
    for (Line& line : lines_) line.link = link;
}

void Switch::set_link(int host, Link link, Nanoseconds now) {
    Line& changed = line(host);
    // What is left of the frame under way takes as long as its bytes do at the new bandwidth.
    const double factor = changed.link.bytes_per_s / link.bytes_per_s;
    for (Clock* clock : {&changed.sends, &changed.receives}) {
        for (Nanoseconds* free : {&clock->free, &clock->free_for_packets}) {
            if (*free > now) *free = now + std::llround(static_cast<double>(*free - now) * factor);
        }
    }
    changed.link = link;
}

void Switch::put(int from, int to, Frame frame, Nanoseconds now) {
    Pair& between = pair(from, to);
    line(from).held_bytes += frame.size;
    if (frame.length <= kPacketBytes && between.queue.empty() && line(from).sends.free_for_packets <= now &&
        line(to).receives.free_for_packets <= now) {
        start(from, to, std::move(frame), now, true);
        return;
    }
    line(from).waiting |= std::uint64_t{1} << to;
    between.queue.push_back({std::move(frame), now});
}

void Switch::start(int from, int to, Frame frame, Nanoseconds when, bool slips_in) {
    Line& sender = line(from);
    Line& receiver = line(to);
    const bool lost = is_lost(std::max(sender.link.loss, receiver.link.loss), frame.length);
    Nanoseconds arrives = 0;
    for (auto [clock, link] : {std::pair{&sender.sends, sender.link}, std::pair{&receiver.receives, receiver.link}}) {
        if (lost && clock == &receiver.receives) break;
        const Nanoseconds takes = duration(frame.length, link.bytes_per_s);
        const Nanoseconds begins = std::max(clock->free, when);
        arrives = std::max(arrives, takes + (slips_in ? when : begins));
        clock->free = begins + takes;
        if (slips_in) clock->free_for_packets = std::max(clock->free_for_packets, when) + takes;
    }
    if (lost) {
        ++dropped_;
        sender.held_bytes -= frame.size;
        return;
    }
    const Nanoseconds jitter = std::max(sender.link.jitter, receiver.link.jitter);
    if (jitter > 0) arrives += std::uniform_int_distribution<Nanoseconds>(0, jitter)(draws_);
    Nanoseconds& last = pair(from, to).last_due;
    last = std::max(last, arrives + std::max(sender.link.latency, receiver.link.latency));
    travelling_.push_back({{from, to, last, std::move(frame)}, started_++});
    std::push_heap(travelling_.begin(), travelling_.end(), is_later);
}

bool Switch::is_lost(double loss, std::size_t length) {
    if (loss <= 0) return false;
    const auto packets = static_cast<double>((length + kPacketBytes - 1) / kPacketBytes);
    return std::bernoulli_distribution(1 - std::pow(1 - loss, packets))(draws_);
}

void Switch::advance(Nanoseconds now) {
    // A frame of each sender in turns, until nobody can start any more.
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < hosts(); ++i) any |= serve((first_ + i) % hosts(), now);
        first_ = (first_ + 1) % hosts();
    }
}

bool Switch::serve(int from, Nanoseconds now) {
    Line& sender = line(from);
    if (sender.waiting == 0 || sender.sends.free > now) return false;
    do {
        sender.served = (sender.served + 1) % hosts();
    } while ((sender.waiting >> sender.served & 1) == 0);
    std::deque<Waiting>& queue = pair(from, sender.served).queue;
    Waiting first = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) sender.waiting &= ~(std::uint64_t{1} << sender.served);
    // Not `now`: the caller may come late, the line was free before.
    start(from, sender.served, std::move(first.frame), std::max(first.since, sender.sends.free), false);
    return true;
}

std::optional<Switch::Arrival> Switch::take(Nanoseconds now) {
    if (travelling_.empty() || travelling_.front().arrival.due > now) return std::nullopt;
    std::pop_heap(travelling_.begin(), travelling_.end(), is_later);
    Arrival arrival = std::move(travelling_.back().arrival);
    travelling_.pop_back();
    line(arrival.from).held_bytes -= arrival.frame.size;
    return arrival;
}

std::optional<Nanoseconds> Switch::next_event() const {
    std::optional<Nanoseconds> next;
    const auto consider = [&next](Nanoseconds when) { next = next ? std::min(*next, when) : when; };
    if (!travelling_.empty()) consider(travelling_.front().arrival.due);
    for (const Line& sender : lines_) {
        if (sender.waiting != 0) consider(sender.sends.free);
    }
    return next;
}

bool Switch::is_later(const Travelling& a, const Travelling& b) {
    return a.arrival.due != b.arrival.due ? a.arrival.due > b.arrival.due : a.number > b.number;
}

}  // namespace hvd_compress::netlab
