// The devices that a session runs on, and the threads of the CPU.

#pragma once

#include "ggml-cpp.h"

#include <mutex>
#include <vector>

namespace ds {

struct backend_set {
    // devices: ggml device names in order of preference, without the CPU
    backend_set(const char * const * devices, int n_devices, int n_threads);
    ~backend_set();

    backend_set(const backend_set &) = delete;
    backend_set & operator=(const backend_set &) = delete;

    ggml_backend_dev_t cpu() const { return devs.back(); }

    // host memory in a layout of the CPU backend's own (repacked, AMX tiles): only the CPU can read it
    bool is_cpu_extra(ggml_backend_buffer_type_t buft) const;
    std::vector<ggml_backend_buffer_type_t> cpu_extra_bufts() const;

    std::vector<ggml_backend_dev_t> devs;       // the CPU is last
    std::vector<ggml_backend_t>     backends;   // one a device, same order
    int                             n_threads = 0;

    // a backend computes one graph at a time: contexts that share them take turns
    std::mutex mutex;

private:
    std::vector<ggml_backend_ptr> owned;
    ggml_threadpool_t             threadpool = nullptr;
};

// makes the devices of an RPC server known to ggml
void rpc_add(const char * endpoint);

} // namespace ds
