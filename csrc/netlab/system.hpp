// System calls that either work or throw.
#pragma once

#include <stdexcept>
#include <string>

#include "switch.hpp"

namespace hvd_compress::netlab {

// What failed, in a sentence for the user.
struct SystemError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Throws with `what` and the meaning of errno where `result` is negative.
long check(long result, const std::string& what);

// A file descriptor that closes itself.
class File {
  public:
    explicit File(int fd = -1) : fd_(fd) {}
    File(File&& other) noexcept : fd_(other.release()) {}
    File& operator=(File&& other) noexcept;
    ~File();

    int fd() const { return fd_; }
    int release() noexcept;

  private:
    int fd_;
};

File open_file(const char* path, int flags);
// Refers to a process as long as the descriptor is open, also where its number is used again.
File open_process(int pid);
Nanoseconds now();

}  // namespace hvd_compress::netlab
