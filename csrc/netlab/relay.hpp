// The relay: what connects the TAP devices of the hosts, with the switch in between.
#pragma once

#include <string>
#include <vector>

#include "control.hpp"
#include "switch.hpp"
#include "tap.hpp"

namespace hvd_compress::netlab {

class Relay {
  public:
    // The first of `taps` is the head's. What goes from it or to it is the launcher's, and is not held up.
    Relay(std::vector<File> taps, Link link, Control control);

    // Forwards frames and takes orders until the process that `launcher` refers to has ended.
    void run(const File& launcher);

  private:
    void read_from(std::size_t port);
    void deliver(Nanoseconds time);
    void write_to(std::size_t port, const std::uint8_t* bytes, std::size_t size);
    std::string answer(const std::string& order);
    std::string set(const std::string& host, const std::string& latency_ns, const std::string& bytes_per_s);
    std::string show() const;

    std::unique_ptr<std::uint8_t[]> large_buffer();
    void give_back(Frame frame);

    std::vector<File> taps_;
    Switch switch_;
    Control control_;
    std::vector<std::unique_ptr<std::uint8_t[]>> large_buffers_;
    std::vector<std::uint64_t> sent_bytes_;
    std::uint64_t delivered_ = 0;
    std::uint64_t late_ = 0;  // of these, later than kLate after they were due
    Nanoseconds latest_ = 0;  // the longest that one was
    std::uint64_t lost_ = 0;
    bool is_realtime_ = false;
};

}  // namespace hvd_compress::netlab
