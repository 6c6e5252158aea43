#include "threads.hpp"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#if defined(__linux__)
#    include <sched.h>
#elif defined(__APPLE__)
#    include <sys/sysctl.h>
#endif

namespace ds {

int physical_cores() {
    const int n_logical = std::max(1u, std::thread::hardware_concurrency());

#if defined(__linux__)
    // the threads of one core list the same siblings
    cpu_set_t allowed;
    const bool pinned = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;

    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (pinned && !CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings");
        std::string line;
        if (std::getline(file, line)) {
            cores.insert(line);
        }
    }
    if (!cores.empty()) {
        return (int) cores.size();
    }
#elif defined(__APPLE__)
    // efficiency cores would make the others wait
    for (const char * key : { "hw.perflevel0.physicalcpu", "hw.physicalcpu" }) {
        int    n    = 0;
        size_t size = sizeof(n);
        if (sysctlbyname(key, &n, &size, nullptr, 0) == 0 && n > 0) {
            return n;
        }
    }
#endif

    return n_logical;
}

} // namespace ds
