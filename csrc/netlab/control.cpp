#include "control.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace hvd_compress::netlab {

Control::Control(const std::string& path) {
    listener_ = File(static_cast<int>(
        check(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "cannot make a socket")));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string made = path + "." + std::to_string(getpid());
    if (made.size() >= sizeof(address.sun_path)) throw SystemError("the name of the socket is too long: " + path);
    std::strcpy(address.sun_path, made.c_str());
    check(bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), "cannot make " + made);
    check(listen(listener_.fd(), 16), "cannot listen on " + made);
    // It gets its name when it answers: who met it before would take it for what a dead lab left, and remove it.
    const int named = link(made.c_str(), path.c_str());
    const int error = errno;
    unlink(made.c_str());
    errno = error;
    check(named, "cannot make " + path);
}

std::vector<int> Control::files() const {
    std::vector<int> files{listener_.fd()};
    for (const File& client : clients_) files.push_back(client.fd());
    return files;
}

void Control::serve(const std::function<std::string(const std::string&)>& answer) {
    const int accepted = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) clients_.emplace_back(accepted);
    std::vector<File> silent;
    for (File& client : clients_) {
        std::array<char, 256> order{};
        const ssize_t size = recv(client.fd(), order.data(), order.size(), 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
            silent.push_back(std::move(client));
        } else if (size > 0) {
            const std::string words = answer(std::string(order.data(), static_cast<std::size_t>(size)));
            // Fails where the client has gone: nobody is left to be told.
            static_cast<void>(send(client.fd(), words.data(), words.size(), MSG_NOSIGNAL));
        }
    }
    clients_ = std::move(silent);
}

}  // namespace hvd_compress::netlab
