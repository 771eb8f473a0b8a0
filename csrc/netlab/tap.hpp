// The network card of an emulated host: a TAP device, whose frames this process reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "system.hpp"

namespace hvd_compress::netlab {

// A frame as it is read and written: a virtio_net_hdr, which is passed on as it is, then the Ethernet frame.
constexpr std::size_t kHeaderBytes = 10;
// TCP hands its segments over in packs of up to 64 KiB, which are divided into packets only where a card cannot; this
// one says that it can. It says so of checksums, too: nothing is lost on the way, so nothing needs to be summed.
constexpr std::size_t kLargestBytes = kHeaderBytes + 65536 + 64;

// Makes the device eth0 in the network namespace that this process is in. It goes with the descriptor.
File open_tap();

// The port number in the last byte of the receiver's address 02:00:00:00:00:xx, or -1 for any other address.
int receiver(const std::uint8_t* frame, std::size_t size);

}  // namespace hvd_compress::netlab
