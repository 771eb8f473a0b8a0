#include "system.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hvd_compress::netlab {

long check(long result, const std::string& what) {
    if (result < 0) throw SystemError(what + ": " + std::strerror(errno));
    return result;
}

File& File::operator=(File&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) close(fd_);
        fd_ = other.release();
    }
    return *this;
}

File::~File() {
    if (fd_ >= 0) close(fd_);
}

int File::release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
}

File open_file(const char* path, int flags) {
    return File(static_cast<int>(check(open(path, flags | O_CLOEXEC), std::string("cannot open ") + path)));
}

File open_process(int pid) {
    return File(static_cast<int>(check(syscall(SYS_pidfd_open, pid, 0), "no process " + std::to_string(pid))));
}

Nanoseconds now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return Nanoseconds{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace hvd_compress::netlab
