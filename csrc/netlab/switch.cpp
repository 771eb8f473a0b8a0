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
    if (frame.length <= kPacketBytes && between.queue.empty() && line(from).sends.free_for_packets <= now &&
        line(to).receives.free_for_packets <= now) {
        start(from, to, std::move(frame), now, true);
        return;
    }
    line(from).queued_bytes += frame.size;
    line(to).waiting |= std::uint64_t{1} << from;
    between.queue.push_back({std::move(frame), now});
}

void Switch::start(int from, int to, Frame frame, Nanoseconds when, bool slips_in) {
    Line& sender = line(from);
    Line& receiver = line(to);
    const double bytes_per_s = std::min(sender.link.bytes_per_s, receiver.link.bytes_per_s);
    const Nanoseconds latency = std::max(sender.link.latency, receiver.link.latency);
    for (auto [clock, own] : {std::pair{&sender.sends, sender.link}, std::pair{&receiver.receives, receiver.link}}) {
        const Nanoseconds takes = duration(frame.length, own.bytes_per_s);
        clock->free = std::max(clock->free, when) + takes;
        if (slips_in) clock->free_for_packets = std::max(clock->free_for_packets, when) + takes;
    }
    Nanoseconds& last = pair(from, to).last_due;
    last = std::max(last, when + duration(frame.length, bytes_per_s) + latency);
    travelling_.push_back({{to, last, std::move(frame)}, started_++});
    std::push_heap(travelling_.begin(), travelling_.end(), is_later);
}

void Switch::advance(Nanoseconds now) {
    // Receivers in turns, and for each one senders in turns, until nobody can start any more.
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < hosts(); ++i) any |= serve((first_ + i) % hosts(), now);
        first_ = (first_ + 1) % hosts();
    }
}

bool Switch::serve(int to, Nanoseconds now) {
    Line& receiver = line(to);
    if (receiver.waiting == 0 || receiver.receives.free > now) return false;
    for (int i = 1; i <= hosts(); ++i) {
        const int from = (receiver.served + i) % hosts();
        if ((receiver.waiting >> from & 1) == 0 || line(from).sends.free > now) continue;
        std::deque<Waiting>& queue = pair(from, to).queue;
        Waiting first = std::move(queue.front());
        queue.pop_front();
        if (queue.empty()) receiver.waiting &= ~(std::uint64_t{1} << from);
        line(from).queued_bytes -= first.frame.size;
        receiver.served = from;
        // Not `now`: the caller may come late, the lines were free before.
        const Nanoseconds when = std::max({first.since, line(from).sends.free, receiver.receives.free});
        start(from, to, std::move(first.frame), when, false);
        return true;
    }
    return false;
}

std::optional<Switch::Arrival> Switch::take(Nanoseconds now) {
    if (travelling_.empty() || travelling_.front().arrival.due > now) return std::nullopt;
    std::pop_heap(travelling_.begin(), travelling_.end(), is_later);
    Arrival arrival = std::move(travelling_.back().arrival);
    travelling_.pop_back();
    return arrival;
}

std::optional<Nanoseconds> Switch::next_event() const {
    std::optional<Nanoseconds> next;
    const auto consider = [&next](Nanoseconds when) { next = next ? std::min(*next, when) : when; };
    if (!travelling_.empty()) consider(travelling_.front().arrival.due);
    for (const Line& receiver : lines_) {
        for (int from = 0; from < hosts() && receiver.waiting >> from != 0; ++from) {
            if (receiver.waiting >> from & 1) consider(std::max(receiver.receives.free, line(from).sends.free));
        }
    }
    return next;
}

bool Switch::is_later(const Travelling& a, const Travelling& b) {
    return a.arrival.due != b.arrival.due ? a.arrival.due > b.arrival.due : a.number > b.number;
}

}  // namespace hvd_compress::netlab
