#include "hosts.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>

namespace hvd_compress::netlab {
namespace {

constexpr int kOwn = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWPID;

struct Pipe {
    File out;
    File in;
};

Pipe make_pipe() {
    std::array<int, 2> ends{};
    check(pipe2(ends.data(), O_CLOEXEC), "cannot make a pipe");
    return {File(ends[0]), File(ends[1])};
}

// Runs `body` in a child that is process 1 of a new process namespace; returns its number.
int start_init(const std::function<void()>& body) {
    const long pid = check(syscall(SYS_clone, kOwn | SIGCHLD, 0, 0, 0, 0), "cannot make namespaces");
    if (pid > 0) return static_cast<int>(pid);
    try {
        body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(1);
}

// Host name and mounts. /dev/shm holds what Open MPI leaves behind when it is killed: it goes with the host.
void furnish(const std::string& name, const File& network) {
    enter_network(network);
    check(sethostname(name.c_str(), name.size()), "cannot set the name of a host");
    check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "cannot make mounts private");
    check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr), "cannot mount /proc");
    check(mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"), "cannot mount /dev/shm");
}

// What process 1 has to do: wait for orphans. Never returns.
void reap_for_ever() {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, nullptr);
    for (;;) {
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
        int signal_number = 0;
        sigwait(&children, &signal_number);
    }
}

void detach_output() {
    const File null = open_file("/dev/null", O_RDWR);
    dup2(null.fd(), STDIN_FILENO);
    dup2(null.fd(), STDOUT_FILENO);
    dup2(null.fd(), STDERR_FILENO);
}

void be_host(const std::string& name, const File& network, File ready) {
    furnish(name, network);
    check(write(ready.fd(), "", 1), "the head of the lab has ended");
    detach_output();
    ready = File();
    reap_for_ever();
}

void be_head(const std::string& name, std::vector<File> networks, File report) {
    // Its own end ends all processes of its namespace, the hosts' among them.
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "cannot ask to end with the relay");
    furnish(name + "-head", networks[0]);
    Pipe ready = make_pipe();
    std::string pids;
    for (std::size_t host = 1; host < networks.size(); ++host) {
        const int pid = start_init([&] {
            report = File();
            ready.out = File();
            const File own = std::move(networks[host]);
            networks.clear();
            be_host(name + "-" + std::to_string(host), own, std::move(ready.in));
        });
        pids += std::to_string(pid) + " ";
    }
    ready.in = File();
    for (std::size_t host = 1; host < networks.size(); ++host) {
        char byte = 0;
        if (read(ready.out.fd(), &byte, 1) != 1) throw SystemError("not all hosts of the lab could be made");
    }
    networks.clear();
    check(write(report.fd(), pids.data(), pids.size()), "the relay of the lab has ended");
    report = File();
    detach_output();
    reap_for_ever();
}

std::vector<int> read_numbers(const File& file) {
    std::vector<int> numbers;
    FILE* stream = fdopen(dup(file.fd()), "r");
    if (stream == nullptr) throw SystemError("cannot read from the head of the lab");
    for (int number = 0; std::fscanf(stream, "%d", &number) == 1;) numbers.push_back(number);
    std::fclose(stream);
    return numbers;
}

pid_t running = 0;

void pass_on(int signal_number) {
    if (running > 0) kill(running, signal_number);
}

}  // namespace

void enter_network(const File& network) {
    check(setns(network.fd(), CLONE_NEWNET), "cannot enter a network namespace");
}

Hosts make_hosts(int hosts, const std::string& name) {
    Hosts made;
    const File home = open_file("/proc/self/ns/net", O_RDONLY);
    for (int host = 0; host <= hosts; ++host) {
        check(unshare(CLONE_NEWNET), "cannot make a network namespace");
        made.networks.push_back(open_file("/proc/self/ns/net", O_RDONLY));
    }
    enter_network(home);
    Pipe report = make_pipe();
    made.head = start_init([&] {
        report.out = File();
        be_head(name, std::move(made.networks), std::move(report.in));
    });
    report.in = File();
    made.inits = read_numbers(report.out);
    if (made.inits.size() != static_cast<std::size_t>(hosts)) throw SystemError("the hosts of the lab did not start");
    return made;
}

int run_within(int pid, char* const* command) {
    std::array<char, 4096> folder{};
    if (getcwd(folder.data(), folder.size()) == nullptr) throw SystemError("there is no working directory");
    const File process = open_process(pid);
    cpu_set_t cores;
    check(sched_getaffinity(pid, sizeof(cores), &cores), "cannot tell the cores of the host");
    check(sched_setaffinity(0, sizeof(cores), &cores), "cannot take the cores of the host");
    check(setns(process.fd(), kOwn | CLONE_NEWNET), "cannot enter the host");
    check(chdir(folder.data()), std::string("cannot enter ") + folder.data());
    running = static_cast<pid_t>(check(fork(), "cannot start a process"));
    if (running == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(command[0], command);
        std::fprintf(stderr, "cannot run %s\n", command[0]);
        _exit(127);
    }
    struct sigaction action{};
    action.sa_handler = pass_on;
    sigaction(SIGTERM, &action, nullptr);
    signal(SIGINT, SIG_IGN);  // a terminal sends it to the command, too
    int status = 0;
    while (waitpid(running, &status, 0) < 0) {
        if (errno != EINTR) throw SystemError("lost the command");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace hvd_compress::netlab
