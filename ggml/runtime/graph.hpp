// One graph, built for fixed run-time dims and fixed wanted results, with its compute buffer.

#pragma once

#include "backends.hpp"
#include "ds_runtime.h"
#include "model.hpp"

#include <string>
#include <unordered_map>
#include <vector>

namespace ds {

// what a caller asks for; borrows everything
struct graph_request {
    int                  graph;
    int                  max_nodes;
    const ds_dim       * dims;
    size_t               n_dims;
    const char * const * outputs;
    size_t               n_outputs;
    const ds_tap       * taps;
    size_t               n_taps;
    bool                 trace;
};

class built_graph {
public:
    built_graph(backend_set & backends, const model & m, const void * state, size_t n_state, const graph_request & request);

    built_graph(const built_graph &) = delete;
    built_graph & operator=(const built_graph &) = delete;

    bool matches(const graph_request & request) const;

    void set_inputs(const ds_input * inputs, size_t n_inputs);
    void compute();

    // throws when it was not wanted
    const ggml_tensor * result(const char * name, int il) const;

    int      n_nodes()       const { return ggml_graph_n_nodes(gf); }
    int      n_splits()      const { return ggml_backend_sched_get_n_splits(sched.get()); }
    uint64_t compute_bytes() const;

    void node(int64_t i, ds_node & node) const;

private:
    friend class graph_builder;

    struct input {
        std::string   name;
        ggml_tensor * tensor;
        int64_t       n_rows;  // its values are rows of a table of that many; 0: they are not indices
        bool          given;
    };

    struct value {
        std::string   name;
        int           il;
        ggml_tensor * tensor;  // nullptr until the graph provides it
    };

    struct traced {
        std::vector<uint8_t> data;
    };

    void build(const model & m, const void * state, size_t n_state, int max_nodes);
    void check_placement() const;
    void find_indices();
    void allocate(size_t n_leafs);

    static bool on_node(ggml_tensor * t, bool ask, void * user_data);

    backend_set & backends;
    std::string   name;

    // the key
    int                                          graph;
    bool                                         trace;
    std::vector<std::pair<std::string, int64_t>> dims;
    std::vector<value>                           outputs;
    std::vector<value>                           taps;

    ggml_context_ptr       ctx;
    ggml_cgraph *          gf = nullptr;
    ggml_backend_sched_ptr sched;
    std::vector<input>     inputs;

    std::unordered_map<const ggml_tensor *, traced> named; // filled only when tracing
};

} // namespace ds
