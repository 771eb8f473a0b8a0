#include "relay.hpp"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

namespace hvd_compress::netlab {
namespace {

// Frames read from one host before others are looked after: reading one of 64 KiB takes some 10 us.
constexpr int kReadsInTurn = 4;
// Frames up to this size are kept in memory of their own size, as most of them are acknowledgements.
constexpr std::size_t kSmallBytes = 2048;
constexpr std::size_t kKeptBuffers = 512;
// What the lab promises of its latencies.
constexpr Nanoseconds kLate = 300'000;

}  // namespace

Relay::Relay(std::vector<File> taps, Link link, Control control)
    : taps_(std::move(taps)),
      switch_(static_cast<int>(taps_.size()) - 1, link),
      control_(std::move(control)),
      sent_bytes_(taps_.size()) {
    // Ranks that wait poll, and would take the processor in turns with the relay: a late relay is a slow network.
    const sched_param priority{1};
    is_realtime_ = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

void Relay::run(const File& launcher) {
    std::vector<pollfd> files;
    for (;;) {
        files.clear();
        files.push_back({launcher.fd(), POLLIN, 0});
        for (std::size_t port = 0; port < taps_.size(); ++port) {
            const bool reads = port == 0 || switch_.accepts(static_cast<int>(port) - 1);
            files.push_back({reads ? taps_[port].fd() : -1, POLLIN, 0});
        }
        for (const int fd : control_.files()) files.push_back({fd, POLLIN, 0});

        timespec timeout{};
        const std::optional<Nanoseconds> next = switch_.next_event();
        if (next) {
            const Nanoseconds wait = std::max(*next - now(), Nanoseconds{0});
            timeout = {wait / 1'000'000'000, wait % 1'000'000'000};
        }
        if (ppoll(files.data(), files.size(), next ? &timeout : nullptr, nullptr) < 0 && errno != EINTR) {
            check(-1, "the relay cannot wait");
        }
        if (files[0].revents != 0) return;
        for (std::size_t port = 0; port < taps_.size(); ++port) {
            if (files[1 + port].revents == 0) continue;
            read_from(port);
            deliver(now());
        }
        deliver(now());
        if (std::any_of(files.begin() + 1 + static_cast<std::ptrdiff_t>(taps_.size()), files.end(),
                        [](const pollfd& file) { return file.revents != 0; })) {
            control_.serve([this](const std::string& order) { return answer(order); });
        }
    }
}

void Relay::read_from(std::size_t port) {
    for (int i = 0; i < kReadsInTurn; ++i) {
        Frame frame{large_buffer(), kLargestBytes, 0};
        const ssize_t size = read(taps_[port].fd(), frame.bytes.get(), kLargestBytes);
        const int to = size < 0 ? -1 : receiver(frame.bytes.get(), static_cast<std::size_t>(size));
        if (size < 0 || to < 0 || static_cast<std::size_t>(to) >= taps_.size()) {
            give_back(std::move(frame));
            if (size < 0 && errno == EAGAIN) return;
            if (size < 0 && errno != EINTR) check(-1, "the relay cannot read from a host");
            continue;  // to nobody: hosts have no business with multicast
        }
        frame.length = static_cast<std::size_t>(size) - kHeaderBytes;
        if (port == 0 || to == 0) {
            write_to(static_cast<std::size_t>(to), frame.bytes.get(), static_cast<std::size_t>(size));
            give_back(std::move(frame));
            continue;
        }
        sent_bytes_[port] += frame.length;
        if (static_cast<std::size_t>(size) <= kSmallBytes) {
            Frame small{std::unique_ptr<std::uint8_t[]>(new std::uint8_t[static_cast<std::size_t>(size)]),
                        static_cast<std::size_t>(size), frame.length};
            std::memcpy(small.bytes.get(), frame.bytes.get(), small.size);
            give_back(std::exchange(frame, std::move(small)));
        }
        switch_.put(static_cast<int>(port) - 1, to - 1, std::move(frame), now());
    }
}

void Relay::deliver(Nanoseconds time) {
    switch_.advance(time);
    while (std::optional<Switch::Arrival> arrival = switch_.take(time)) {
        const Nanoseconds behind = now() - arrival->due;
        ++delivered_;
        if (behind > kLate) ++late_;
        latest_ = std::max(latest_, behind);
        write_to(static_cast<std::size_t>(arrival->to) + 1, arrival->frame.bytes.get(),
                 arrival->frame.length + kHeaderBytes);
        give_back(std::move(arrival->frame));
    }
}

void Relay::write_to(std::size_t port, const std::uint8_t* bytes, std::size_t size) {
    ssize_t written = 0;
    do {
        written = write(taps_[port].fd(), bytes, size);
    } while (written < 0 && errno == EINTR);
    if (written < 0) ++lost_;  // no memory, or a device that is down: lost, as on any network, and counted
}

std::string Relay::answer(const std::string& order) {
    std::istringstream words(order);
    std::string verb;
    std::string host;
    std::string latency_ns;
    std::string bytes_per_s;
    words >> verb >> host >> latency_ns >> bytes_per_s;
    try {
        if (verb == "set") return set(host, latency_ns, bytes_per_s);
        if (verb == "show") return show();
    } catch (const std::logic_error&) {  // a number that is none
    }
    return "error: this is no order: " + order;
}

std::string Relay::set(const std::string& host, const std::string& latency_ns, const std::string& bytes_per_s) {
    const int first = host == "all" ? 1 : std::stoi(host);
    const int last = host == "all" ? switch_.hosts() : first;
    if (first < 1 || last > switch_.hosts()) {
        return "error: there is no host " + host + ": this lab has hosts 1 to " + std::to_string(switch_.hosts());
    }
    const Nanoseconds latency = latency_ns == "-" ? 0 : std::stoll(latency_ns);
    const double bandwidth = bytes_per_s == "-" ? 1 : std::stod(bytes_per_s);
    if (latency < 0 || !(bandwidth > 0)) return "error: a latency is not negative, and a bandwidth is positive";
    const Nanoseconds time = now();
    for (int i = first - 1; i < last; ++i) {
        Link link = switch_.link(i);
        if (latency_ns != "-") link.latency = latency;
        if (bytes_per_s != "-") link.bytes_per_s = bandwidth;
        switch_.set_link(i, link, time);
    }
    return "ok";
}

std::string Relay::show() const {
    std::ostringstream lines;
    lines.precision(15);
    lines << "realtime " << is_realtime_ << " latest_ns " << latest_ << " lost " << lost_ << " delivered " << delivered_
          << " late " << late_ << " dropped " << switch_.dropped() << "\n";
    for (int host = 0; host < switch_.hosts(); ++host) {
        lines << host + 1 << " " << switch_.link(host).latency << " " << switch_.link(host).bytes_per_s << " "
              << sent_bytes_[static_cast<std::size_t>(host) + 1] << "\n";
    }
    return lines.str();
}

std::unique_ptr<std::uint8_t[]> Relay::large_buffer() {
    if (large_buffers_.empty()) return std::unique_ptr<std::uint8_t[]>(new std::uint8_t[kLargestBytes]);
    std::unique_ptr<std::uint8_t[]> buffer = std::move(large_buffers_.back());
    large_buffers_.pop_back();
    return buffer;
}

void Relay::give_back(Frame frame) {
    if (frame.size == kLargestBytes && large_buffers_.size() < kKeptBuffers) {
        large_buffers_.push_back(std::move(frame.bytes));
    }
}

}  // namespace hvd_compress::netlab
