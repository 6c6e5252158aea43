#include "backends.hpp"

#include "error.hpp"
#include "log.hpp"
#include "threads.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string>

namespace ds {

using threadpool_new_t     = ggml_threadpool_t (*)(ggml_threadpool_params *);
using threadpool_free_t    = void (*)(ggml_threadpool_t);
using cpu_set_threadpool_t = void (*)(ggml_backend_t, ggml_threadpool_t);

template <typename F>
static F proc_address(ggml_backend_dev_t dev, const char * name) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    return reg ? (F) ggml_backend_reg_get_proc_address(reg, name) : nullptr;
}

static ggml_backend_dev_t find_cpu() {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu) {
        return cpu;
    }

    // a ggml built with GGML_BACKEND_DL keeps its backends in libraries beside itself
    Dl_info info;
    if (dladdr((const void *) ggml_backend_dev_count, &info) && info.dli_fname) {
        const std::string path = info.dli_fname;
        ggml_backend_load_all_from_path(path.substr(0, path.find_last_of('/')).c_str());
    }
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

static ggml_backend_dev_t find_device(const char * name) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_name(name);
    if (dev) {
        return dev;
    }

    std::vector<std::string> known;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        known.push_back(ggml_backend_dev_name(ggml_backend_dev_get(i)));
    }
    fail("no device '%s'; this build of ggml has: %s", name, join(known).c_str());
}

backend_set::backend_set(const char * const * devices, int n_devices, int n_threads_wanted) {
    log_init();
    take_ggml_error();

    ggml_backend_dev_t cpu_dev = find_cpu();
    if (!cpu_dev) {
        fail_ggml("this build of ggml has no CPU device");
    }

    for (int i = 0; i < n_devices; i++) {
        ggml_backend_dev_t dev = find_device(devices[i]);
        if (dev == cpu_dev) {
            continue;
        }
        if (std::find(devs.begin(), devs.end(), dev) != devs.end()) {
            fail("device '%s' is listed twice", devices[i]);
        }
        devs.push_back(dev);
    }
    devs.push_back(cpu_dev);

    // GGML_SCHED_MAX_BACKENDS, which ggml asserts
    constexpr size_t max_backends = 16;
    if (devs.size() > max_backends) {
        fail("%zu devices: the scheduler of ggml takes at most %zu, the CPU included", devs.size(), max_backends);
    }

    n_threads = n_threads_wanted > 0 ? n_threads_wanted : physical_cores();
    if (n_threads > GGML_MAX_N_THREADS) {
        fail("%d threads: ggml takes at most %d", n_threads, GGML_MAX_N_THREADS);
    }

    for (ggml_backend_dev_t dev : devs) {
        ggml_backend_t backend = ggml_backend_dev_init(dev, nullptr);
        if (!backend) {
            fail_ggml("device '%s' cannot be opened", ggml_backend_dev_name(dev));
        }
        owned.emplace_back(backend);
        backends.push_back(backend);

        if (auto set_n_threads = proc_address<ggml_backend_set_n_threads_t>(dev, "ggml_backend_set_n_threads")) {
            set_n_threads(backend, n_threads);
        }
    }

    auto threadpool_new = proc_address<threadpool_new_t>    (cpu_dev, "ggml_threadpool_new");
    auto set_threadpool = proc_address<cpu_set_threadpool_t>(cpu_dev, "ggml_backend_cpu_set_threadpool");
    if (threadpool_new && set_threadpool) {
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        threadpool = threadpool_new(&params);
        if (!threadpool) {
            fail_ggml("cannot start %d threads", n_threads);
        }
        set_threadpool(backends.back(), threadpool);
    }
}

backend_set::~backend_set() {
    owned.clear();
    if (threadpool) {
        if (auto threadpool_free = proc_address<threadpool_free_t>(cpu(), "ggml_threadpool_free")) {
            threadpool_free(threadpool);
        }
    }
}

bool backend_set::is_cpu_extra(ggml_backend_buffer_type_t buft) const {
    return !ggml_backend_buft_is_host(buft) && ggml_backend_buft_get_device(buft) == cpu();
}

std::vector<ggml_backend_buffer_type_t> backend_set::cpu_extra_bufts() const {
    std::vector<ggml_backend_buffer_type_t> res;
    if (auto get_extra_bufts = proc_address<ggml_backend_dev_get_extra_bufts_t>(cpu(), "ggml_backend_dev_get_extra_bufts")) {
        for (ggml_backend_buffer_type_t * buft = get_extra_bufts(cpu()); buft && *buft; buft++) {
            res.push_back(*buft);
        }
    }
    return res;
}

} // namespace ds
