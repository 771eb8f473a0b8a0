// The emulated switch: which frame travels when. It knows no file and no clock; the caller says what time it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace hvd_compress::netlab {

using Nanoseconds = std::int64_t;

// One bit a host in the sets below.
constexpr int kMaxHosts = 64;

// The line between a host and the switch; both directions have the whole bandwidth.
struct Link {
    Nanoseconds latency = 0;
    double bytes_per_s = 0;
    Nanoseconds jitter = 0;  // a frame arrives up to so much later
    double loss = 0;         // the share of packets that the switch drops
};

struct Frame {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;    // of what `bytes` holds
    std::size_t length = 0;  // bytes on the emulated line
};

// Each host has a line to the switch, and on it one clock for what it sends and one for what it receives: when the line
// is free again. A frame starts when its sender's line is free and goes through the switch at once, to its receiver's
// line, which carries frames in the order in which they started. It arrives a latency, the larger one of the two, after
// both lines have carried it. A sender serves those to whom it has frames in turns, so nobody waits behind a frame for
// somebody else. Frames of one pair never overtake each other, however they jitter. A frame of which a packet is lost
// is lost when its sender's line has carried it; which ones are is the same in every run that sends the same.
//
// A frame of one packet at most that has none of its pair before it does not wait for longer ones: a network sends
// these as many packets, and it would slip in between. Its time is added to both lines all the same.
class Switch {
  public:
    // Bytes of one sender that may be here, waiting or under way, before the caller has to stop reading from it.
    static constexpr std::size_t kQueueBytes = std::size_t{64} << 20;
    static constexpr std::size_t kPacketBytes = 1514;

    struct Arrival {
        int from;
        int to;
        Nanoseconds due;
        Frame frame;
    };

    Switch(int hosts, Link link);

    int hosts() const { return static_cast<int>(lines_.size()); }
    const Link& link(int host) const { return line(host).link; }
    // From now on; frames that wait or are on their way keep their order.
    void set_link(int host, Link link, Nanoseconds now);

    // Frames that the lines' loss has dropped so far.
    std::uint64_t dropped() const { return dropped_; }

    bool accepts(int from) const { return line(from).held_bytes < kQueueBytes; }
    // A frame that the sender has had ready since `now`. It may start as soon as this call.
    void put(int from, int to, Frame frame, Nanoseconds now);
    // Starts what can start by `now`.
    void advance(Nanoseconds now);
    // The next frame that has arrived by `now`, in the order of arrival.
    std::optional<Arrival> take(Nanoseconds now);
    // When something will start or arrive, or nothing where all is idle. Call advance() before.
    std::optional<Nanoseconds> next_event() const;

  private:
    // When a line is free again: for any frame, and for single packets, which only wait for each other.
    struct Clock {
        Nanoseconds free = 0;
        Nanoseconds free_for_packets = 0;
    };
    struct Line {
        Link link;
        Clock sends;
        Clock receives;
        std::size_t held_bytes = 0;  // of frames from this host
        std::uint64_t waiting = 0;   // for whom this host has frames that wait
        int served = 0;              // whose frame it has sent last
    };
    struct Waiting {
        Frame frame;
        Nanoseconds since;
    };
    struct Pair {
        std::deque<Waiting> queue;
        Nanoseconds last_due = 0;
    };
    struct Travelling {
        Arrival arrival;
        std::uint64_t number;
    };

    Line& line(int host) { return lines_[static_cast<std::size_t>(host)]; }
    const Line& line(int host) const { return lines_[static_cast<std::size_t>(host)]; }
    Pair& pair(int from, int to) { return pairs_[static_cast<std::size_t>(from * hosts() + to)]; }
    void start(int from, int to, Frame frame, Nanoseconds when, bool slips_in);
    bool is_lost(double loss, std::size_t length);
    bool serve(int from, Nanoseconds now);
    static bool is_later(const Travelling& a, const Travelling& b);

    std::vector<Line> lines_;
    std::vector<Pair> pairs_;
    std::vector<Travelling> travelling_;  // a heap, the first to arrive on top
    std::uint64_t started_ = 0;
    std::mt19937_64 draws_{1};
    std::uint64_t dropped_ = 0;
    int first_ = 0;  // the sender that is served first, in turns
};

}  // namespace hvd_compress::netlab
