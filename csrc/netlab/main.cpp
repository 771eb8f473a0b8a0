// netlab_relay: the compiled part of hvd_compress.netlab, which starts it; not meant to be called by hand.
//
//   relay HOSTS LATENCY_NS BYTES_PER_S JITTER_NS LOSS NAME SOCKET LAUNCHER   makes a lab, and runs it until the process
//                                                                           LAUNCHER ends
//   enter PID COMMAND...     runs a command in the namespaces of a process, on the cores that it may use
//   start COMMAND...         a rank: becomes the command
//   agent NAME WORDS...      as ssh would: a shell command on the host NAME, of those in $HVD_COMPRESS_NETLAB_HOSTS
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "hosts.hpp"
#include "relay.hpp"

using namespace hvd_compress::netlab;

namespace {

constexpr unsigned kStartSeconds = 30;

int relay(char** words) {
    const int hosts = std::stoi(words[0]);
    const Link link{std::stoll(words[1]), std::stod(words[2]), std::stoll(words[3]), std::stod(words[4])};
    const std::string socket = words[6];
    const int launcher_pid = std::stoi(words[7]);
    const File launcher = open_process(launcher_pid);
    if (getppid() != launcher_pid) throw SystemError("the launcher of the lab has ended");
    if (hosts < 1 || hosts > kMaxHosts) throw SystemError("a lab has 1 to " + std::to_string(kMaxHosts) + " hosts");

    alarm(kStartSeconds);  // a start that hangs ends, with all that it has made
    const Hosts made = make_hosts(hosts, words[5]);
    std::vector<File> taps;
    const File home = open_file("/proc/self/ns/net", 0);
    for (const File& network : made.networks) {
        enter_network(network);
        taps.push_back(open_tap());
    }
    enter_network(home);
    Relay relay(std::move(taps), link, Control(socket));
    std::printf("%d", made.head);
    for (const int init : made.inits) std::printf(" %d", init);
    std::printf("\n");
    std::fflush(stdout);
    alarm(0);
    relay.run(launcher);
    unlink(socket.c_str());
    return 0;
}

int agent(char** words) {
    const std::string name = words[0];
    const char* known = std::getenv("HVD_COMPRESS_NETLAB_HOSTS");
    std::istringstream hosts(known == nullptr ? "" : known);
    for (std::string host; std::getline(hosts, host, ',');) {
        if (host.compare(0, name.size() + 1, name + "=") != 0) continue;
        std::string line;
        for (char** word = words + 1; *word != nullptr; ++word) line += (line.empty() ? "" : " ") + std::string(*word);
        std::array<char, 8> shell{"/bin/sh"};
        std::array<char, 3> option{"-c"};
        const std::array<char*, 4> command{shell.data(), option.data(), line.data(), nullptr};
        return run_within(std::stoi(host.substr(name.size() + 1)), command.data());
    }
    throw SystemError("this lab has no host " + name);
}

// Open MPI's launcher (5.0.11) misses the end of a rank that ends at once, and waits for it for ever.
constexpr useconds_t kStartedMicroseconds = 50'000;

int start(char** command) {
    usleep(kStartedMicroseconds);
    execvp(command[0], command);
    std::fprintf(stderr, "cannot run %s\n", command[0]);
    return 127;
}

}  // namespace

int main(int count, char** words) try {
    const std::string mode = count > 1 ? words[1] : "";
    if (mode == "relay" && count == 10) return relay(words + 2);
    if (mode == "enter" && count > 3) return run_within(std::stoi(words[2]), words + 3);
    if (mode == "start" && count > 2) return start(words + 2);
    if (mode == "agent" && count > 3) return agent(words + 2);
    std::fprintf(stderr, "use hvd-compress netlab\n");
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
