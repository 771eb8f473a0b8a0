// The emulated switch by itself, in a time of its own: tests/netlab/test_switch.py builds and runs it, with
// sanitizers. Ends with status 0 if all is well.
#include "../../../csrc/netlab/switch.hpp"

#include <cstdio>
#include <utility>
#include <vector>

using namespace hvd_compress::netlab;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr double kMegabyte = 1e6;  // a second; a frame of 10,000 bytes takes 10 ms
constexpr std::size_t kFrame = 10'000;

int failures = 0;

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    ++failures;
}

Frame frame(std::size_t length, std::uint8_t mark = 0) {
    Frame made{std::unique_ptr<std::uint8_t[]>(new std::uint8_t[1]{mark}), length, length};
    return made;
}

struct Got {
    Nanoseconds due;
    int to;
    std::uint8_t mark;
};

// Lets time pass from event to event until all has arrived.
std::vector<Got> run(Switch& net, Nanoseconds now = 0) {
    std::vector<Got> got;
    net.advance(now);
    while (const std::optional<Nanoseconds> next = net.next_event()) {
        expect(*next >= now || got.empty(), "time does not go back");
        now = std::max(now, *next);
        net.advance(now);
        while (auto arrival = net.take(now)) got.push_back({arrival->due, arrival->to, arrival->frame.bytes[0]});
    }
    return got;
}

void one_frame_takes_its_time_and_the_latency() {
    Switch net(2, {3 * kMs, kMegabyte});
    net.put(0, 1, frame(kFrame), 5 * kMs);
    const auto got = run(net, 5 * kMs);
    expect(got.size() == 1 && got[0].to == 1 && got[0].due == 18 * kMs, "5 + 10 + 3 ms");
}

void frames_of_a_sender_follow_each_other() {
    Switch net(2, {3 * kMs, kMegabyte});
    for (std::uint8_t i = 0; i < 5; ++i) net.put(0, 1, frame(kFrame, i), 0);
    const auto got = run(net);
    for (std::size_t i = 0; i < got.size(); ++i) {
        expect(got[i].mark == i && got[i].due == static_cast<Nanoseconds>(10 * (i + 1) + 3) * kMs, "one by one");
    }
}

void a_late_caller_does_not_slow_the_lines() {
    Switch net(2, {50 * kMs, kMegabyte});
    for (int i = 0; i < 3; ++i) net.put(0, 1, frame(kFrame), 0);
    net.advance(0);
    net.advance(19 * kMs);
    net.advance(38 * kMs);
    const auto got = run(net, 38 * kMs);
    expect(got.size() == 3 && got[2].due == 80 * kMs, "30 ms of sending and 50 of latency, whenever it was asked");
}

void receivers_share_their_line_among_senders() {
    Switch net(4, {0, kMegabyte});
    for (int i = 0; i < 6; ++i) {
        for (int from : {1, 2, 3}) net.put(from, 0, frame(kFrame, static_cast<std::uint8_t>(from)), 0);
    }
    const auto got = run(net);
    expect(got.size() == 18 && got.back().due == 180 * kMs, "the line is never idle, and never carries more");
    for (std::size_t i = 0; i + 2 < got.size(); i += 3) {
        expect(got[i].mark + got[i + 1].mark + got[i + 2].mark == 6, "senders take turns");
    }
}

void nobody_waits_behind_a_frame_for_somebody_else() {
    Switch net(3, {0, kMegabyte});
    for (int i = 0; i < 10; ++i) net.put(1, 2, frame(kFrame), 0);
    for (int i = 0; i < 10; ++i) net.put(0, 2, frame(kFrame), 0);
    net.put(0, 1, frame(kFrame, 7), 0);
    for (const Got& got : run(net)) {
        if (got.mark == 7) expect(got.due <= 20 * kMs, "host 1 was free all the time");
    }
}

void streams_of_others_starve_nobody() {
    Switch net(4, {0, kMegabyte});
    for (int i = 0; i < 50; ++i) net.put(1, 2, frame(kFrame), 0);
    net.advance(0);
    for (int i = 0; i < 50; ++i)
        net.put(3, 0, frame(kFrame), 5 * kMs);  // never free at the same time as the other line
    net.advance(5 * kMs);
    net.put(1, 0, frame(kFrame, 7), 12 * kMs);
    for (const Got& got : run(net, 12 * kMs)) {
        if (got.mark == 7) expect(got.due <= 45 * kMs, "a turn at the sender, and one at the receiver");
    }
}

void the_slower_line_and_the_longer_latency_count() {
    Switch net(3, {1 * kMs, kMegabyte});
    net.set_link(2, {7 * kMs, kMegabyte / 2}, 0);
    net.put(0, 2, frame(kFrame), 0);
    net.put(1, 0, frame(kFrame), 0);
    const auto got = run(net);
    expect(got.size() == 2 && got[0].due == 11 * kMs && got[1].due == 27 * kMs, "20 + 7, and 10 + 1");
}

void a_change_counts_at_once_and_keeps_the_order() {
    Switch net(2, {100 * kMs, kMegabyte / 100});
    net.put(0, 1, frame(kFrame, 0), 0);  // a second
    net.put(0, 1, frame(kFrame, 1), 0);
    net.advance(0);
    for (int host : {0, 1}) net.set_link(host, {0, kMegabyte}, 500 * kMs);
    const auto got = run(net, 500 * kMs);
    expect(got.size() == 2 && got[0].mark == 0 && got[1].mark == 1, "no overtaking");
    expect(got[1].due == 1100 * kMs, "the second one would be there after 515 ms, but for the first");
}

void a_packet_does_not_wait_for_long_frames_of_other_pairs() {
    Switch net(3, {0, kMegabyte});
    for (int i = 0; i < 4; ++i) net.put(0, 1, frame(kFrame), 0);
    net.advance(0);
    net.put(0, 2, frame(1000, 9), 1 * kMs);
    const auto got = run(net, 1 * kMs);
    expect(got.size() == 5 && got[0].mark == 9 && got[0].due == 2 * kMs, "it slips in");
    expect(got.back().due == 41 * kMs, "and takes its time from the others");
}

void packets_alone_do_not_exceed_the_bandwidth() {
    Switch net(2, {0, kMegabyte});
    for (int i = 0; i < 100; ++i) net.put(0, 1, frame(1000, static_cast<std::uint8_t>(i)), 0);
    const auto got = run(net);
    expect(got.size() == 100 && got.back().due == 100 * kMs, "100,000 bytes in 100 ms");
    for (std::size_t i = 0; i < got.size(); ++i) expect(got[i].mark == i, "in order");
}

void a_sender_is_told_to_stop() {
    Switch net(2, {0, kMegabyte});
    int put = 0;
    while (net.accepts(0)) {
        net.put(0, 1, frame(1 << 20), 0);
        ++put;
    }
    expect(put == static_cast<int>(Switch::kQueueBytes >> 20), "at its bound");
    expect(run(net).size() == static_cast<std::size_t>(put) && net.accepts(0), "and may go on");
}

void jitter_delays_and_keeps_the_order() {
    Switch net(2, {1 * kMs, kMegabyte, 5 * kMs});
    for (int i = 0; i < 50; ++i) net.put(0, 1, frame(1000, static_cast<std::uint8_t>(i)), 0);
    const auto got = run(net);
    bool later = false;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const Nanoseconds due = (2 + static_cast<Nanoseconds>(i)) * kMs;
        expect(got[i].mark == i && got[i].due >= due && got[i].due <= due + 5 * kMs, "by up to 5 ms, in order");
        later |= got[i].due > due + 3 * kMs;
    }
    expect(got.size() == 50 && later, "some of them by much");
}

void packets_are_lost_and_take_their_time_of_the_senders_line() {
    Switch net(2, {0, kMegabyte, 0, 0.2});
    for (int i = 0; i < 1000; ++i) net.put(0, 1, frame(1000), 0);
    const auto got = run(net);
    expect(got.size() + net.dropped() == 1000, "each arrives or is counted");
    expect(net.dropped() > 150 && net.dropped() < 250, "a fifth of them");
    expect(got.back().due > 990 * kMs && net.accepts(0), "what is lost was sent");
    for (int i = 0; i < 100; ++i) net.put(0, 1, frame(20 * Switch::kPacketBytes), 0);
    expect(run(net).size() < 10, "of 20 packets one is nearly always lost");
}

}  // namespace

int main() {
    one_frame_takes_its_time_and_the_latency();
    frames_of_a_sender_follow_each_other();
    a_late_caller_does_not_slow_the_lines();
    receivers_share_their_line_among_senders();
    nobody_waits_behind_a_frame_for_somebody_else();
    streams_of_others_starve_nobody();
    the_slower_line_and_the_longer_latency_count();
    a_change_counts_at_once_and_keeps_the_order();
    a_packet_does_not_wait_for_long_frames_of_other_pairs();
    packets_alone_do_not_exceed_the_bandwidth();
    a_sender_is_told_to_stop();
    jitter_delays_and_keeps_the_order();
    packets_are_lost_and_take_their_time_of_the_senders_line();
    return failures == 0 ? 0 : 1;
}
