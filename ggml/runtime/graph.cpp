#include "graph.hpp"

#include "cpu_ops.hpp"
#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace ds {

// inputs, and nodes that no wanted result needs, which do not count against the bound that is declared for a graph
constexpr size_t SPARE_TENSORS = 1024;

//
// graph_builder: what the generated code sees
//

class graph_builder final : public ds_graph {
public:
    graph_builder(built_graph & g, int max_nodes) : g(g), max_nodes(max_nodes) {
        ctx = g.ctx.get();
        gf  = g.gf;
        used_before = ggml_used_mem(ctx);
    }

    int64_t dim(const char * name) const override {
        for (const auto & [key, value] : g.dims) {
            if (key == name) {
                return value;
            }
        }
        fail("graph '%s' asks for the run-time dim '%s', which was not given", g.name.c_str(), name);
    }

    ggml_tensor * input(const char * name, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) override {
        check_room();
        const int64_t ne[GGML_MAX_DIMS] = { ne0, ne1, ne2, ne3 };

        for (const built_graph::input & in : g.inputs) {
            if (in.name == name) {
                if (in.tensor->type != type || memcmp(in.tensor->ne, ne, sizeof(ne)) != 0) {
                    fail("graph '%s' declares the input '%s' twice, with different shapes", g.name.c_str(), name);
                }
                return in.tensor;
            }
        }

        int64_t n_bytes = ggml_type_size(type);
        bool    fits    = true;
        for (int64_t n : ne) {
            fits = fits && n >= 0 && !__builtin_mul_overflow(n_bytes, n, &n_bytes);
        }
        if (!fits) {
            fail("graph '%s': input '%s' would have the shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                 g.name.c_str(), name, ne0, ne1, ne2, ne3);
        }

        ggml_tensor * t = ggml_new_tensor(ctx, type, GGML_MAX_DIMS, ne);
        ggml_set_name(t, name);
        ggml_set_input(t);
        g.inputs.push_back({ name, t, 0, false });
        return t;
    }

    void output(const char * name, ggml_tensor * t) override {
        provided_outputs.push_back(name);
        provide(g.outputs, name, -1, t);
    }

    void tap(const char * name, int il, ggml_tensor * t) override {
        provided_taps.push_back(format("%s-%d", name, il));
        provide(g.taps, name, il, t);
    }

    ggml_tensor * write(ggml_tensor * t) override {
        check_room();
        ggml_build_forward_expand(gf, t);
        return t;
    }

    void cb(ggml_tensor * t, const char * name, int il) override {
        check_room();
        if (t->op == GGML_OP_NONE) {
            return; // an input, a weight or state: it has its own name
        }
        if (il >= 0) {
            ggml_format_name(t, "%s-%d", name, il);
        } else {
            ggml_set_name(t, name);
        }
        if (g.trace) {
            g.named[t];
        }
    }

    void check_complete() const {
        for (const auto & out : g.outputs) {
            if (!out.tensor) {
                fail("graph '%s' has no output '%s'; it has: %s", g.name.c_str(), out.name.c_str(), join(provided_outputs).c_str());
            }
        }
        for (const auto & tap : g.taps) {
            if (!tap.tensor) {
                fail("graph '%s' has no tap '%s-%d'; it has: %s", g.name.c_str(), tap.name.c_str(), tap.il, join(provided_taps).c_str());
            }
        }
    }

    int n_added = 0; // nodes that the author did not ask for

private:
    void provide(std::vector<built_graph::value> & wanted, const char * name, int il, ggml_tensor * t) {
        check_room();
        for (built_graph::value & v : wanted) {
            if (v.il != il || v.name != name) {
                continue;
            }
            if (v.tensor) {
                fail("graph '%s' provides '%s' twice", g.name.c_str(), name);
            }

            if (!ggml_is_contiguous(t)) {
                t = ggml_cont(ctx, t);
                ggml_format_name(t, "%s (contiguous)", name);
                n_added++;
            }
            // the allocator must reuse neither the value nor what it is a view of
            for (ggml_tensor * keep : { t, t->view_src }) {
                if (keep && !keep->buffer) {
                    ggml_set_output(keep);
                }
            }
            ggml_build_forward_expand(gf, t);
            v.tensor = t;
        }
    }

    void check_room() const {
        const size_t n_tensors = (ggml_used_mem(ctx) - used_before) / ggml_tensor_overhead();
        if (n_tensors > (size_t) max_nodes + SPARE_TENSORS) {
            fail("graph '%s' is larger than the %d nodes declared for it", g.name.c_str(), max_nodes);
        }
    }

    built_graph & g;
    int           max_nodes;
    size_t        used_before;

    std::vector<std::string> provided_outputs;
    std::vector<std::string> provided_taps;
};

//
// built_graph
//

built_graph::built_graph(backend_set & backends, const model & m, const void * state, size_t n_state, const graph_request & r)
    : backends(backends), name(m.graph(r.graph).name), graph(r.graph), trace(r.trace) {
    for (size_t i = 0; i < r.n_dims; i++) {
        if (r.dims[i].value < 0) {
            fail("graph '%s': run-time dim '%s' is %" PRId64, name.c_str(), r.dims[i].name, r.dims[i].value);
        }
        dims.emplace_back(r.dims[i].name, r.dims[i].value);
    }
    for (size_t i = 0; i < r.n_outputs; i++) {
        outputs.push_back({ r.outputs[i], -1, nullptr });
    }
    for (size_t i = 0; i < r.n_taps; i++) {
        taps.push_back({ r.taps[i].name, r.taps[i].il, nullptr });
    }
    if (r.max_nodes < 1 || r.max_nodes > (1 << 24)) {
        fail("graph '%s': max_nodes is %d", name.c_str(), r.max_nodes);
    }

    take_ggml_error();
    build(m, state, n_state, r.max_nodes);
    if (backends.devs.size() == 1) {
        replace_cpu_ops(ctx.get(), gf);
    }
    check_placement();
    find_indices();
    allocate(m.n_weights() + n_state + inputs.size());
}

void built_graph::build(const model & m, const void * state, size_t n_state, int max_nodes) {
    // ggml aborts when this memory ends, and is only watched between its calls: twice of what will be let pass
    const size_t n_tensors = 2*(size_t) max_nodes + 2*SPARE_TENSORS;
    const size_t n_graph   = n_tensors + m.n_weights() + n_state;

    const size_t mem_size = ggml_tensor_overhead()*n_tensors + ggml_graph_overhead_custom(n_graph, false);
    ctx.reset(ggml_init({ mem_size, nullptr, /*no_alloc =*/ true }));
    if (!ctx) {
        fail("graph '%s': no memory for %d nodes", name.c_str(), max_nodes);
    }
    gf = ggml_new_graph_custom(ctx.get(), n_graph, false);

    graph_builder builder(*this, max_nodes);
    m.graph(graph).build(m.data(), state, builder);
    builder.check_complete();

    if (n_nodes() - builder.n_added > max_nodes) {
        fail("graph '%s' has %d nodes, more than the %d declared for it", name.c_str(), n_nodes() - builder.n_added, max_nodes);
    }
}

static bool is_view(const ggml_tensor * t) {
    return t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
}

static ggml_backend_buffer_t buffer_of(const ggml_tensor * t) {
    return t->view_src ? t->view_src->buffer : t->buffer;
}

// Finds what the scheduler would abort on: ops that no device runs, and memory that no device of ours can reach.
void built_graph::check_placement() const {
    ggml_backend_dev_t cpu = backends.cpu();

    for (int i = 0; i < n_nodes(); i++) {
        const ggml_tensor * node = ggml_graph_node(gf, i);

        for (const ggml_tensor * src : node->src) {
            ggml_backend_buffer_t buffer = src ? buffer_of(src) : nullptr;
            if (!buffer) {
                continue;
            }
            ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buffer);

            const bool reachable = std::any_of(backends.devs.begin(), backends.devs.end(), [&](ggml_backend_dev_t dev) {
                return ggml_backend_dev_supports_buft(dev, buft);
            });
            if (!reachable) {
                fail("graph '%s': '%s' lies in %s memory, which no device of this context can use", name.c_str(), src->name,
                     ggml_backend_buft_name(buft));
            }
            if (!is_view(node) && backends.is_cpu_extra(buft) && (src->view_src || !ggml_backend_dev_supports_op(cpu, node))) {
                fail("graph '%s': %s '%s' cannot read '%s' in its %s layout; declare that use when the weights are loaded",
                     name.c_str(), ggml_op_desc(node), node->name, src->name, ggml_backend_buft_name(buft));
            }
        }

        if (is_view(node)) {
            continue;
        }
        ggml_backend_buffer_t buffer = buffer_of(node); // of state that the node writes to
        const bool runs = std::any_of(backends.devs.begin(), backends.devs.end(), [&](ggml_backend_dev_t dev) {
            return ggml_backend_dev_supports_op(dev, node) &&
                (!buffer || ggml_backend_dev_supports_buft(dev, ggml_backend_buffer_get_type(buffer)));
        });
        if (!runs) {
            fail("graph '%s': no device runs %s '%s' (%s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "])", name.c_str(),
                 ggml_op_desc(node), node->name, ggml_type_name(node->type), node->ne[0], node->ne[1], node->ne[2], node->ne[3]);
        }
    }

    for (const std::vector<value> * values : { &outputs, &taps }) {
        for (const value & v : *values) {
            ggml_backend_buffer_t buffer = buffer_of(v.tensor);
            if (buffer && backends.is_cpu_extra(ggml_backend_buffer_get_type(buffer))) {
                fail("graph '%s': '%s' is a weight in %s layout, which cannot be read back", name.c_str(), v.name.c_str(),
                     ggml_backend_buffer_name(buffer));
            }
        }
    }
}

// Notes which inputs are row numbers, and of how many rows: ggml aborts on one that is out of range.
void built_graph::find_indices() {
    for (int i = 0; i < n_nodes(); i++) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op != GGML_OP_GET_ROWS && node->op != GGML_OP_SET_ROWS) {
            continue;
        }
        const ggml_tensor * ids  = node->src[1];
        const ggml_tensor * root = ids->view_src ? ids->view_src : ids;
        if (ggml_nelements(ids) != ggml_nelements(root)) {
            continue; // only a part of the input counts
        }
        const int64_t n_rows = node->op == GGML_OP_GET_ROWS ? node->src[0]->ne[1] : node->ne[1];
        for (input & in : inputs) {
            if (in.tensor == root) {
                in.n_rows = in.n_rows > 0 ? std::min(in.n_rows, n_rows) : n_rows;
            }
        }
    }
}

void built_graph::allocate(size_t n_leafs) {
    std::vector<ggml_backend_t> handles = backends.backends;

    // twice the nodes: room for the copies that the scheduler makes between devices
    const size_t size = 2*(size_t) n_nodes() + n_leafs + 64;
    sched.reset(ggml_backend_sched_new(handles.data(), nullptr, (int) handles.size(), size, /*parallel =*/ false, /*op_offload =*/ true));

    if (!ggml_backend_sched_alloc_graph(sched.get(), gf)) {
        fail_ggml("graph '%s' (%d nodes) cannot be allocated", name.c_str(), n_nodes());
    }
    if (trace) {
        ggml_backend_sched_set_eval_callback(sched.get(), on_node, this);
    }
}

bool built_graph::matches(const graph_request & r) const {
    if (r.graph != graph || r.trace != trace ||
        r.n_dims != dims.size() || r.n_outputs != outputs.size() || r.n_taps != taps.size()) {
        return false;
    }
    for (size_t i = 0; i < r.n_dims; i++) {
        if (r.dims[i].value != dims[i].second || dims[i].first != r.dims[i].name) {
            return false;
        }
    }
    for (size_t i = 0; i < r.n_outputs; i++) {
        if (outputs[i].name != r.outputs[i]) {
            return false;
        }
    }
    for (size_t i = 0; i < r.n_taps; i++) {
        if (taps[i].il != r.taps[i].il || taps[i].name != r.taps[i].name) {
            return false;
        }
    }
    return true;
}

template <typename T>
static void check_rows(const std::string & graph, const char * name, const void * data, size_t n, int64_t n_rows) {
    for (size_t i = 0; i < n; i++) {
        T value;
        memcpy(&value, (const T *) data + i, sizeof(T));
        if (value < 0 || value >= n_rows) {
            fail("graph '%s': input '%s' holds %" PRId64 " at index %zu; the rows that it picks are 0 to %" PRId64,
                 graph.c_str(), name, (int64_t) value, i, n_rows - 1);
        }
    }
}

void built_graph::set_inputs(const ds_input * list, size_t n) {
    for (input & in : inputs) {
        in.given = false;
    }

    for (size_t i = 0; i < n; i++) {
        const auto in = std::find_if(inputs.begin(), inputs.end(), [&](const input & in) { return in.name == list[i].name; });
        if (in == inputs.end()) {
            std::vector<std::string> known;
            for (const input & in : inputs) {
                known.push_back(in.name);
            }
            fail("graph '%s' has no input '%s'; it has: %s", name.c_str(), list[i].name, join(known).c_str());
        }
        if (in->given) {
            fail("graph '%s': input '%s' is given twice", name.c_str(), list[i].name);
        }
        if (list[i].nbytes != ggml_nbytes(in->tensor)) {
            const ggml_tensor * t = in->tensor;
            fail("graph '%s': input '%s' takes %zu bytes (%s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]), %" PRIu64 " were given",
                 name.c_str(), list[i].name, ggml_nbytes(t), ggml_type_name(t->type), t->ne[0], t->ne[1], t->ne[2], t->ne[3],
                 list[i].nbytes);
        }
        in->given = true;

        if (in->n_rows > 0 && in->tensor->type == GGML_TYPE_I32) {
            check_rows<int32_t>(name, list[i].name, list[i].data, list[i].nbytes/sizeof(int32_t), in->n_rows);
        }
        if (in->n_rows > 0 && in->tensor->type == GGML_TYPE_I64) {
            check_rows<int64_t>(name, list[i].name, list[i].data, list[i].nbytes/sizeof(int64_t), in->n_rows);
        }

        // what the wanted results do not need has no memory
        if (in->tensor->buffer) {
            ggml_backend_tensor_set(in->tensor, list[i].data, 0, list[i].nbytes);
        }
    }

    for (const input & in : inputs) {
        if (!in.given && in.tensor->buffer && ggml_nelements(in.tensor) > 0) {
            fail("graph '%s': input '%s' was not given", name.c_str(), in.name.c_str());
        }
    }
}

void built_graph::compute() {
    if (n_nodes() == 0) {
        return; // the results are inputs or weights
    }
    take_ggml_error();
    const ggml_status status = ggml_backend_sched_graph_compute(sched.get(), gf);
    if (status != GGML_STATUS_SUCCESS) {
        fail_ggml("graph '%s' failed while computing: %s", name.c_str(), ggml_status_to_string(status));
    }
}

// called by the scheduler twice for each node: whether its value is wanted, then with the value
bool built_graph::on_node(ggml_tensor * t, bool ask, void * user_data) {
    built_graph & g = *(built_graph *) user_data;

    const auto it = g.named.find(t);
    if (ask) {
        return it != g.named.end();
    }
    if (it != g.named.end()) {
        it->second.data.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, it->second.data.data(), 0, it->second.data.size());
    }
    return true;
}

const ggml_tensor * built_graph::result(const char * result_name, int il) const {
    const std::vector<value> & values = il < 0 ? outputs : taps;
    for (const value & v : values) {
        if (v.il == il && v.name == result_name) {
            return v.tensor;
        }
    }
    const std::string full = il < 0 ? std::string(result_name) : format("%s-%d", result_name, il);
    fail("'%s' was not asked for in the last run of graph '%s'", full.c_str(), name.c_str());
}

uint64_t built_graph::compute_bytes() const {
    uint64_t n = 0;
    for (ggml_backend_t backend : backends.backends) {
        n += ggml_backend_sched_get_buffer_size(sched.get(), backend);
    }
    return n;
}

void built_graph::node(int64_t i, ds_node & res) const {
    if (i < 0 || i >= n_nodes()) {
        fail("graph '%s' has %d nodes, number %" PRId64 " was asked for", name.c_str(), n_nodes(), i);
    }
    ggml_tensor *  t       = ggml_graph_node(gf, i);
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched.get(), t);

    res.name    = t->name;
    res.op      = t->op == GGML_OP_CUSTOM ? ggml_op_name(original_op(t)) : ggml_op_desc(t);
    res.backend = backend ? ggml_backend_name(backend) : "";
    res.type    = t->type;
    for (int k = 0; k < GGML_MAX_DIMS; k++) {
        res.ne[k] = t->ne[k];
        res.nb[k] = t->nb[k];
    }

    const auto it = named.find(t);
    const bool has_data = it != named.end() && !it->second.data.empty();
    res.data   = has_data ? it->second.data.data() : nullptr;
    res.nbytes = has_data ? it->second.data.size() : 0;
}

} // namespace ds
