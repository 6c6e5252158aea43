// The C boundary: handles, argument checks, and no exception beyond this file.

// declared first, so that the handles stay hidden while the functions are exported
struct ds_backends;
struct ds_weights;
struct ds_model;
struct ds_context;

#pragma GCC visibility push(default)
#include "ds_runtime.h"
#pragma GCC visibility pop

#include "context.hpp"
#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <cstring>

// A handle owns one reference; what was made from it keeps another, so handles can be freed in any order.
struct ds_backends { std::shared_ptr<ds::backend_set> ptr; };
struct ds_weights  { std::shared_ptr<ds::weight_set>  ptr; };
struct ds_model    { std::shared_ptr<ds::model>       ptr; };
struct ds_context  { std::shared_ptr<ds::context>     ptr; };

template <typename Handle>
static auto & deref(Handle * h, const char * what) {
    if (!h) {
        ds::fail("the %s is NULL", what);
    }
    return *h->ptr;
}

template <typename Handle>
static auto share(Handle * h) {
    return h ? h->ptr : nullptr;
}

static void require(const void * p, const char * what) {
    if (!p) {
        ds::fail("%s is NULL", what);
    }
}

// runs f for its effect: 0, or 1 with the error kept
template <typename F>
static int status_of(F && f) {
    return ds::guarded(1, [&] { f(); return 0; });
}

const char * ds_last_error(void) {
    return ds::last_error();
}

void ds_set_log_level(int level) {
    status_of([&] { ds::log_set_level(level); });
}

//
// backends
//

int ds_rpc_add(const char * endpoint) {
    return status_of([&] {
        require(endpoint, "the endpoint");
        ds::rpc_add(endpoint);
    });
}

ds_backends * ds_backends_new(const char * const * devices, int n_devices, int n_threads) {
    return ds::guarded((ds_backends *) nullptr, [&] {
        return new ds_backends { std::make_shared<ds::backend_set>(devices, n_devices, n_threads) };
    });
}

void ds_backends_free(ds_backends * b) {
    delete b;
}

int ds_backends_n_threads(const ds_backends * b) {
    return b ? b->ptr->n_threads : 0;
}

//
// weights
//

ds_weights * ds_weights_load(ds_backends * b, const char * path, const ds_weight_desc * descs, size_t n, int use_mmap,
                             int (*progress)(uint64_t, uint64_t, void *), void * user) {
    return ds::guarded((ds_weights *) nullptr, [&] {
        require(b, "the backends");
        require(path, "the path");
        return new ds_weights { std::make_shared<ds::weight_set>(b->ptr, path, descs, n, use_mmap != 0, progress, user) };
    });
}

void ds_weights_free(ds_weights * w) {
    delete w;
}

size_t ds_weights_report(const ds_weights * w, char * buf, size_t size) {
    return ds::guarded((size_t) 0, [&] {
        const std::string report = deref(w, "weights").report();
        if (buf && size > 0) {
            const size_t n = std::min(report.size(), size - 1);
            memcpy(buf, report.data(), n);
            buf[n] = '\0';
        }
        return report.size();
    });
}

//
// model
//

ds_model * ds_model_new(const char * path, const ds_param * params, size_t n_params, ds_weights * own, ds_weights * other,
                        const char * const * shared, const char * const * shared_as, size_t n_shared) {
    return ds::guarded((ds_model *) nullptr, [&] {
        require(path, "the path");
        return new ds_model { std::make_shared<ds::model>(path, params, n_params, share(own), share(other), shared, shared_as, n_shared) };
    });
}

void ds_model_free(ds_model * m) {
    delete m;
}

int ds_model_n_graphs(const ds_model * m) {
    return m ? m->ptr->n_graphs() : 0;
}

const char * ds_model_graph_name(const ds_model * m, int i) {
    return ds::guarded((const char *) nullptr, [&] { return deref(m, "model").graph(i).name; });
}

//
// context
//

ds_context * ds_context_new(ds_backends * b, ds_model * m, const ds_state_desc * state, size_t n_state, int max_graphs) {
    return ds::guarded((ds_context *) nullptr, [&] {
        require(b, "the backends");
        require(m, "the model");
        return new ds_context { std::make_shared<ds::context>(b->ptr, m->ptr, state, n_state, max_graphs) };
    });
}

void ds_context_free(ds_context * c) {
    delete c;
}

void ds_context_clear(ds_context * c) {
    status_of([&] { deref(c, "context").clear(); });
}

int ds_run(ds_context * c, int graph, int max_nodes,
           const ds_dim * dims, size_t n_dims, const ds_input * inputs, size_t n_inputs,
           const char * const * outputs, size_t n_outputs, const ds_tap * taps, size_t n_taps, int trace) {
    return status_of([&] {
        const ds::graph_request request = { graph, max_nodes, dims, n_dims, outputs, n_outputs, taps, n_taps, trace != 0 };
        deref(c, "context").run(request, inputs, n_inputs);
    });
}

int ds_result_info(ds_context * c, const char * name, int il, int32_t * type, int64_t * ne, uint64_t * nbytes) {
    return status_of([&] {
        const ggml_tensor * t = deref(c, "context").last_run().result(name, il);
        *type   = t->type;
        *nbytes = ggml_nbytes(t);
        std::copy(t->ne, t->ne + GGML_MAX_DIMS, ne);
    });
}

int ds_result_get(ds_context * c, const char * name, int il, void * dst, uint64_t nbytes) {
    return status_of([&] { deref(c, "context").result_get(name, il, dst, nbytes); });
}

int64_t ds_nodes(ds_context * c) {
    return ds::guarded((int64_t) -1, [&] { return (int64_t) deref(c, "context").last_run().n_nodes(); });
}

int ds_node_get(ds_context * c, int64_t i, ds_node * node) {
    return status_of([&] { deref(c, "context").last_run().node(i, *node); });
}

void ds_get_stats(const ds_context * c, ds_stats * stats) {
    status_of([&] { *stats = deref(c, "context").stats(); });
}

int ds_state_get(ds_context * c, const char * name, int il, void * dst, uint64_t nbytes) {
    return status_of([&] { deref(c, "context").state_get(name, il, dst, nbytes); });
}

int ds_state_set(ds_context * c, const char * name, int il, const void * src, uint64_t nbytes) {
    return status_of([&] { deref(c, "context").state_set(name, il, src, nbytes); });
}
