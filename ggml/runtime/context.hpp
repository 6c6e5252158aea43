// The state of one sequence of runs, and the graphs kept for it.

#pragma once

#include "graph.hpp"

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ds {

class context final : public ds_tensors {
public:
    context(std::shared_ptr<backend_set> backends, std::shared_ptr<model> m, const ds_state_desc * state, size_t n_state, int max_graphs);
    ~context() override;

    void run(const graph_request & request, const ds_input * inputs, size_t n_inputs);
    void clear();

    // the graph of the last run; throws when there was none, or it failed
    const built_graph & last_run() const;

    void result_get(const char * name, int il, void * dst, uint64_t n_bytes) const;
    void state_get (const char * name, int il, void * dst, uint64_t n_bytes) const;
    void state_set (const char * name, int il, const void * src, uint64_t n_bytes);

    ds_stats stats() const;

    // ds_tensors, for the generated code
    ggml_tensor * weight(const char * format, int il) const override;
    ggml_tensor * state (const char * name,   int il) const override;

private:
    using state_key = std::pair<std::string, int>;

    void          new_state(const ds_state_desc * state, size_t n_state);
    built_graph & find_or_build(const graph_request & request);
    ggml_tensor * checked_state(const char * name, int il, uint64_t n_bytes) const;

    std::shared_ptr<backend_set>         backends;
    std::shared_ptr<model>               m;
    ggml_context_ptr                     state_ctx;
    ggml_backend_buffer_ptr              state_buffer;
    std::map<state_key, ggml_tensor *>   states;
    void *                               state_instance = nullptr;

    size_t                                    max_graphs;
    std::list<std::unique_ptr<built_graph>>   graphs;         // most recently used first
    const built_graph *                       last = nullptr;

    int64_t n_runs     = 0;
    int64_t n_builds   = 0;
    int64_t build_us   = 0;
    int64_t compute_us = 0;
};

} // namespace ds
