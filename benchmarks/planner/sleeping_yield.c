// Preloaded into the ranks of lab.py: a rank that waits for others sleeps between two polls. In the lab all hosts share
// the processors of one machine, where it would take them from ranks of other hosts that compute.
#include <time.h>

int sched_yield(void) {
    const struct timespec pause = {0, 100000};
    nanosleep(&pause, 0);
    return 0;
}
