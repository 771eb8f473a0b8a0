// The emulated hosts: namespaces that no file names, so that nothing is left of them when their processes end.
#pragma once

#include <string>
#include <vector>

#include "system.hpp"

namespace hvd_compress::netlab {

// A lab has a head, from which jobs are started, and hosts 1..n on which their ranks run. Each has network, host name,
// processes, IPC and mounts of its own. The hosts' processes are seen from the head, so it can enter them.
struct Hosts {
    int head = 0;                // process number of the head's init, as this process sees it
    std::vector<int> inits;      // of each host's init, as the head sees it
    std::vector<File> networks;  // network namespaces; the first is the head's
};

// Makes them. They end with this process, however it ends. Names are NAME-head and NAME-1..NAME-n.
Hosts make_hosts(int hosts, const std::string& name);

// Moves this process into a network namespace.
void enter_network(const File& network);

// Runs a command in the namespaces of the process `pid` and returns its exit status, 128 + the signal where one ended
// it. The command ends with this process, and gets the SIGTERM that is sent to it.
int run_within(int pid, char* const* command);

}  // namespace hvd_compress::netlab
