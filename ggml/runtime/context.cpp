#include "context.hpp"

#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>

namespace ds {

using lock = std::lock_guard<std::mutex>;

static int64_t now_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

static std::string full_name(const char * name, int il) {
    return il < 0 ? std::string(name) : format("%s-%d", name, il);
}

context::context(std::shared_ptr<backend_set> set, std::shared_ptr<model> mod, const ds_state_desc * state, size_t n_state, int max_graphs)
    : backends(std::move(set)), m(std::move(mod)), max_graphs(std::max(max_graphs, 1)) {
    new_state(state, n_state);
    state_instance = m->arch()->state_new(m->data(), *this);
}

context::~context() {
    graphs.clear();
    if (state_instance) {
        m->arch()->state_free(state_instance);
    }
}

void context::new_state(const ds_state_desc * list, size_t n) {
    if (n == 0) {
        return;
    }
    state_ctx.reset(ggml_init({ ggml_tensor_overhead()*n, nullptr, /*no_alloc =*/ true }));
    if (!state_ctx) {
        fail("out of memory");
    }

    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        const ds_state_desc & d    = list[i];
        const std::string     full = full_name(d.name, d.il);

        if (d.type < 0 || d.type >= GGML_TYPE_COUNT || ggml_blck_size((ggml_type) d.type) == 0) {
            fail("state '%s' has an unknown element type %d", full.c_str(), d.type);
        }
        const auto type    = (ggml_type) d.type;
        int64_t    n_bytes = ggml_type_size(type);
        bool       fits    = d.ne[0] % ggml_blck_size(type) == 0;
        for (int64_t ne : d.ne) {
            fits = fits && ne > 0 && !__builtin_mul_overflow(n_bytes, ne, &n_bytes);
        }
        if (!fits) {
            fail("state '%s' has an impossible shape %s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", full.c_str(),
                 ggml_type_name(type), d.ne[0], d.ne[1], d.ne[2], d.ne[3]);
        }

        ggml_tensor * t = ggml_new_tensor(state_ctx.get(), type, GGML_MAX_DIMS, d.ne);
        ggml_set_name(t, full.c_str());
        if (!states.emplace(state_key(d.name, d.il), t).second) {
            fail("state '%s' is listed twice", full.c_str());
        }
        total += ggml_nbytes(t);
    }

    take_ggml_error();
    ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backends->backends.front());
    state_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(state_ctx.get(), buft));
    if (!state_buffer) {
        fail_ggml("%s has no room for %.1f MiB of state", ggml_backend_buft_name(buft), total/1024.0/1024.0);
    }
    ggml_backend_buffer_clear(state_buffer.get(), 0);
}

void context::clear() {
    lock guard(backends->mutex);
    if (state_buffer) {
        ggml_backend_buffer_clear(state_buffer.get(), 0);
    }
}

void context::run(const graph_request & request, const ds_input * inputs, size_t n_inputs) {
    lock guard(backends->mutex);
    last = nullptr;

    built_graph & g = find_or_build(request);

    const int64_t t_start = now_us();
    g.set_inputs(inputs, n_inputs);
    g.compute();
    compute_us += now_us() - t_start;

    n_runs++;
    last = &g;
}

built_graph & context::find_or_build(const graph_request & request) {
    const auto it = std::find_if(graphs.begin(), graphs.end(), [&](const auto & g) { return g->matches(request); });
    if (it != graphs.end()) {
        graphs.splice(graphs.begin(), graphs, it);
        return *graphs.front();
    }

    // the oldest goes first, so that its compute buffer is free for the new one
    while (graphs.size() >= max_graphs) {
        graphs.pop_back();
    }

    const int64_t t_start = now_us();
    graphs.push_front(std::make_unique<built_graph>(*backends, *m, state_instance, states.size(), request));
    build_us += now_us() - t_start;
    n_builds++;
    return *graphs.front();
}

const built_graph & context::last_run() const {
    if (!last) {
        fail("there is no result: nothing was run, or the last run failed");
    }
    return *last;
}

void context::result_get(const char * name, int il, void * dst, uint64_t n_bytes) const {
    lock guard(backends->mutex);
    const ggml_tensor * t = last_run().result(name, il);
    if (n_bytes != ggml_nbytes(t)) {
        fail("result '%s' has %zu bytes, room for %" PRIu64 " was given", full_name(name, il).c_str(), ggml_nbytes(t), n_bytes);
    }
    ggml_backend_tensor_get(t, dst, 0, n_bytes);
}

ggml_tensor * context::checked_state(const char * name, int il, uint64_t n_bytes) const {
    ggml_tensor * t = state(name, il);
    if (!t) {
        std::vector<std::string> known;
        for (const auto & it : states) {
            known.push_back(full_name(it.first.first.c_str(), it.first.second));
        }
        fail("there is no state '%s'; there is: %s", full_name(name, il).c_str(), join(known).c_str());
    }
    if (n_bytes != ggml_nbytes(t)) {
        fail("state '%s' has %zu bytes, not %" PRIu64, full_name(name, il).c_str(), ggml_nbytes(t), n_bytes);
    }
    return t;
}

void context::state_get(const char * name, int il, void * dst, uint64_t n_bytes) const {
    lock guard(backends->mutex);
    ggml_backend_tensor_get(checked_state(name, il, n_bytes), dst, 0, n_bytes);
}

void context::state_set(const char * name, int il, const void * src, uint64_t n_bytes) {
    lock guard(backends->mutex);
    ggml_backend_tensor_set(checked_state(name, il, n_bytes), src, 0, n_bytes);
}

ds_stats context::stats() const {
    ds_stats s = {};
    s.n_runs     = n_runs;
    s.n_builds   = n_builds;
    s.build_us   = build_us;
    s.compute_us = compute_us;
    if (last) {
        s.n_nodes  = last->n_nodes();
        s.n_splits = last->n_splits();
    }
    for (const auto & g : graphs) {
        s.compute_bytes += g->compute_bytes();
    }
    if (state_buffer) {
        s.state_bytes = ggml_backend_buffer_get_size(state_buffer.get());
    }
    return s;
}

ggml_tensor * context::weight(const char * format, int il) const {
    return m->weight(format, il);
}

ggml_tensor * context::state(const char * name, int il) const {
    const auto it = states.find(state_key(name, il));
    return it == states.end() ? nullptr : it->second;
}

} // namespace ds
