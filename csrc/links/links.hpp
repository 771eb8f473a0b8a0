// Messages between this process and others, over sockets that are connected already: all pairs at once, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_compress::links {

// A message is its length, 8 bytes in the order of the machine, and its bytes.
using Length = std::uint64_t;

struct Part {
    char* data;
    Length bytes;
    bool travels;  // else there is no message
};

enum class End : int {
    kDone,
    kClosed,    // the other end has closed the socket, or its process is gone
    kFailed,    // the system says why: an errno
    kSilent,    // nothing has moved for the whole limit
    kMismatch,  // a message has another length than is expected, or more than there is memory for
};

struct Outcome {
    End end;
    int rank;                      // of whom; -1 where all is done
    int error;                     // of kFailed
    std::uint64_t expected, came;  // of kMismatch
};

// One socket for each other rank. swap() and the destructor are called by one thread at a time; abort() by any.
class Links {
  public:
    // Takes the sockets over: one by rank, and -1 for this one.
    explicit Links(std::vector<int> sockets);
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;
    ~Links();

    // Sends a message to each rank whose part travels, while one comes from each whose part does. `order` has the ranks
    // to which messages leave, the first one first. Where `exactly` is false, a message may have fewer bytes than the
    // part that it comes to, and `received` then has how many.
    Outcome swap(const std::vector<Part>& sent, std::vector<Part>& received, const std::vector<int>& order,
                 bool exactly, int limit_ms);

    // Ends what runs, and all that comes: both ends find their sockets closed.
    void abort() noexcept;

    // In a process that was forked: lets the sockets go, which the other process still has.
    void forget() noexcept;

  private:
    std::vector<int> sockets_;
};

}  // namespace hvd_compress::links
