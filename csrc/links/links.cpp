#include "links.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hvd_compress::links {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
// At a time from or to one rank, so that all lines work.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

constexpr Outcome kDone{End::kDone, -1, 0, 0, 0};

// Half of the traffic with one rank: how much of its message has moved.
struct Half {
    Length header = 0;
    char* data = nullptr;
    std::size_t moved = 0;  // of header and bytes
    bool busy = false;

    std::size_t total() const { return sizeof(Length) + header; }
};

// What a call that moves bytes has come to: true where it can go on at once.
bool goes_on(ssize_t moved, int rank, Outcome& outcome) {
    if (moved > 0) return true;
    if (moved == 0) {
        outcome = {End::kClosed, rank, 0, 0, 0};
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        const bool gone = errno == ECONNRESET || errno == EPIPE;
        outcome = {gone ? End::kClosed : End::kFailed, rank, errno, 0, 0};
    }
    return false;
}

class Swap {
  public:
    Swap(const std::vector<int>& sockets, const std::vector<Part>& sent, std::vector<Part>& received, bool exactly)
        : sockets_(sockets), received_(received), exactly_(exactly), out_(sockets.size()), in_(sockets.size()) {
        for (std::size_t rank = 0; rank < sockets.size(); ++rank) {
            if (sockets[rank] < 0) continue;
            out_[rank] = {sent[rank].bytes, sent[rank].data, 0, sent[rank].travels};
            in_[rank] = {0, received[rank].data, 0, received[rank].travels};
        }
    }

    Outcome run(const std::vector<int>& order, int limit_ms) {
        std::vector<pollfd> waiting;
        std::vector<int> ranks;
        for (;;) {
            waiting.clear(), ranks.clear();
            for (const int rank : order) {
                const auto at = static_cast<std::size_t>(rank);
                if (out_[at].busy) send(rank);
                if (in_[at].busy) receive(rank);
                if (outcome_.end != End::kDone) return outcome_;
                const int events = (out_[at].busy ? POLLOUT : 0) | (in_[at].busy ? POLLIN : 0);
                if (events == 0) continue;
                waiting.push_back({sockets_[at], static_cast<short>(events), 0});
                ranks.push_back(rank);
            }
            if (waiting.empty()) return kDone;
            const int ready = ::poll(waiting.data(), static_cast<nfds_t>(waiting.size()), limit_ms);
            if (ready == 0) return {End::kSilent, ranks.front(), 0, 0, 0};
            if (ready < 0 && errno != EINTR) return {End::kFailed, ranks.front(), errno, 0, 0};
        }
    }

  private:
    void send(int rank) {
        Half& half = out_[static_cast<std::size_t>(rank)];
        iovec pieces[2];
        msghdr message{};
        message.msg_iov = pieces;
        int count = 0;
        const std::size_t of_header = std::min(half.moved, sizeof(Length));
        if (of_header < sizeof(Length)) {
            pieces[count++] = {reinterpret_cast<char*>(&half.header) + of_header, sizeof(Length) - of_header};
        }
        const std::size_t of_data = half.moved - of_header;
        if (of_data < half.header) {
            pieces[count++] = {half.data + of_data, std::min<std::size_t>(half.header - of_data, kMostBytes)};
        }
        message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
        const ssize_t moved = ::sendmsg(sockets_[static_cast<std::size_t>(rank)], &message, kNoSignal);
        if (!goes_on(moved, rank, outcome_)) return;
        half.moved += static_cast<std::size_t>(moved);
        half.busy = half.moved < half.total();
    }

    void receive(int rank) {
        const auto at = static_cast<std::size_t>(rank);
        Half& half = in_[at];
        if (half.moved < sizeof(Length)) {
            char* header = reinterpret_cast<char*>(&half.header) + half.moved;
            const ssize_t moved = ::recv(sockets_[at], header, sizeof(Length) - half.moved, 0);
            if (!goes_on(moved, rank, outcome_)) return;
            half.moved += static_cast<std::size_t>(moved);
            if (half.moved < sizeof(Length)) return;
            const bool fits = exactly_ ? half.header == received_[at].bytes : half.header <= received_[at].bytes;
            if (!fits) {
                outcome_ = {End::kMismatch, rank, 0, received_[at].bytes, half.header};
                return;
            }
            received_[at].bytes = half.header;
        }
        const std::size_t of_data = half.moved - sizeof(Length);
        if (of_data < half.header) {
            const std::size_t most = std::min<std::size_t>(half.header - of_data, kMostBytes);
            const ssize_t moved = ::recv(sockets_[at], half.data + of_data, most, 0);
            if (!goes_on(moved, rank, outcome_)) return;
            half.moved += static_cast<std::size_t>(moved);
        }
        half.busy = half.moved < half.total();
    }

    const std::vector<int>& sockets_;
    std::vector<Part>& received_;
    const bool exactly_;
    std::vector<Half> out_, in_;
    Outcome outcome_ = kDone;
};

}  // namespace

Links::Links(std::vector<int> sockets) : sockets_(std::move(sockets)) {
    for (const int socket : sockets_) {
        if (socket >= 0) ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL, 0) | O_NONBLOCK);
    }
}

Links::~Links() { forget(); }

void Links::forget() noexcept {
    for (int& socket : sockets_) {
        if (socket >= 0) ::close(socket);
        socket = -1;
    }
}

Outcome Links::swap(const std::vector<Part>& sent, std::vector<Part>& received, const std::vector<int>& order,
                    bool exactly, int limit_ms) {
    return Swap(sockets_, sent, received, exactly).run(order, limit_ms);
}

void Links::abort() noexcept {
    for (const int socket : sockets_) {
        if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
    }
}

}  // namespace hvd_compress::links
