// A small architecture as the generator would write one, with graphs that provoke the runtime.

#include "draftsmith.h"

#include <stdexcept>
#include <vector>

namespace {

struct layer_weights {
    ggml_tensor * norm;
    ggml_tensor * ffn;
};

struct model {
    int64_t n_embd;
    int64_t n_layer;
    float   eps;

    ggml_tensor *              tok_embd;
    ggml_tensor *              output;
    std::vector<layer_weights> layers;
};

struct state {
    std::vector<ggml_tensor *> k;
};

void * model_new(const ds_params & params, const ds_tensors & tensors) {
    model m = {};
    m.n_embd  = params.get_i64("n_embd");
    m.n_layer = params.get_i64("n_layer");
    m.eps     = params.get_f32("eps");
    if (params.get_i64("n_layer_list", 1) != 11) {
        throw std::runtime_error("guard: n_layer_list[1] == 11");
    }

    m.tok_embd = tensors.weight("token_embd.weight");
    if (m.tok_embd == nullptr) {
        m.tok_embd = tensors.weight("target.token_embd.weight");
    }
    if (m.tok_embd == nullptr) {
        throw std::runtime_error("guard: token_embd.weight is present");
    }
    m.output = tensors.weight("output.weight");
    for (int il = 0; il < m.n_layer; ++il) {
        m.layers.push_back({ tensors.weight("blk.{il}.norm.weight", il), tensors.weight("blk.%d.ffn.weight", il) });
    }
    return new model(m);
}

void model_free(void * m) {
    delete (model *) m;
}

void * state_new(const void * m, const ds_tensors & tensors) {
    auto * s = new state;
    for (int il = 0; il < ((const model *) m)->n_layer; ++il) {
        s->k.push_back(tensors.state("kv.k", il));
    }
    return s;
}

void state_free(void * s) {
    delete (state *) s;
}

void build_main(const void * model_ptr, const void * state_ptr, ds_graph & g) {
    const model & m = *(const model *) model_ptr;
    const state & s = *(const state *) state_ptr;
    ggml_context * ctx = g.ctx;

    const int64_t n_tokens = g.dim("n_tokens");

    ggml_tensor * tokens = g.input("tokens", GGML_TYPE_I32, n_tokens);
    ggml_tensor * rows   = g.input("rows",   GGML_TYPE_I64, n_tokens);
    ggml_tensor * bias   = g.input("bias",   GGML_TYPE_F32, m.n_embd);

    ggml_tensor * cur = ggml_get_rows(ctx, m.tok_embd, tokens);
    g.cb(cur, "embd");
    g.cb(tokens, "renamed");

    for (int il = 0; il < m.n_layer; ++il) {
        g.tap("layer_input", il, cur);

        ggml_tensor * h = ggml_rms_norm(ctx, cur, m.eps);
        h = ggml_mul(ctx, h, m.layers[il].norm);
        g.cb(h, "norm", il);

        h = ggml_mul_mat(ctx, m.layers[il].ffn, h);
        g.cb(h, "ffn", il);

        g.write(ggml_set_rows(ctx, s.k[il], h, rows));

        cur = ggml_add(ctx, cur, h);
        g.cb(cur, "layer_out", il);
    }

    g.output("hidden", cur);

    ggml_tensor * logits = ggml_mul_mat(ctx, m.output, cur);
    g.cb(logits, "logits");
    g.output("logits", logits);

    g.output("biased",     ggml_add(ctx, cur, bias));
    g.output("transposed", ggml_transpose(ctx, cur));
    g.output("tokens_out", tokens);
    g.output("rows_view",  ggml_view_1d(ctx, rows, 1, 0));
    g.output("norm_out",   m.layers[0].norm);
    g.output("k_out",      ggml_view_2d(ctx, s.k[0], m.n_embd, n_tokens, s.k[0]->nb[1], 0));
    g.output("output_out", m.output);
}

// no node at all: everything wanted is a leaf
void build_leaves(const void * model_ptr, const void * /*state*/, ds_graph & g) {
    const model & m = *(const model *) model_ptr;
    ggml_tensor * x = g.input("x", GGML_TYPE_F32, g.dim("n"));
    g.output("x", x);
    g.output("norm", m.layers[0].norm);
}

void build_chain(const void * /*model*/, const void * /*state*/, ds_graph & g) {
    ggml_tensor * cur = g.input("x", GGML_TYPE_F32, 4);
    for (int64_t i = 0; i < g.dim("n"); ++i) {
        cur = ggml_scale(g.ctx, cur, 1.0f);
        if (g.dim("cb")) {
            g.cb(cur, "scale", (int) i);
        }
    }
    g.output("y", cur);
}

void build_huge(const void * /*model*/, const void * /*state*/, ds_graph & g) {
    ggml_tensor * x = g.input("x", GGML_TYPE_F32, 1);
    g.output("y", ggml_repeat_4d(g.ctx, x, g.dim("n"), 1, 1, 1));
}

void build_throws(const void * /*model*/, const void * /*state*/, ds_graph & /*g*/) {
    throw std::runtime_error("the graph\nthrew");
}

void build_view_of_weight(const void * model_ptr, const void * /*state*/, ds_graph & g) {
    const model & m = *(const model *) model_ptr;
    ggml_tensor * x = g.input("x", GGML_TYPE_F32, m.n_embd);
    ggml_tensor * w = m.layers[0].ffn;
    g.output("y", ggml_mul_mat(g.ctx, ggml_view_2d(g.ctx, w, w->ne[0], 8, w->nb[1], 0), x));
}

void build_rows_of_weight(const void * model_ptr, const void * /*state*/, ds_graph & g) {
    const model & m = *(const model *) model_ptr;
    ggml_tensor * ids = g.input("ids", GGML_TYPE_I32, 1);
    g.output("y", ggml_get_rows(g.ctx, m.layers[0].ffn, ids));
}

void build_twice(const void * /*model*/, const void * /*state*/, ds_graph & g) {
    g.input("x", GGML_TYPE_F32, 4);
    g.output("y", g.input("x", GGML_TYPE_F32, 4));
    g.input("x", GGML_TYPE_F32, 5);
}

// ops that the runtime computes itself on the CPU, over rows of n values
void build_cpu_ops(const void * /*model*/, const void * /*state*/, ds_graph & g) {
    const int64_t n = g.dim("n");
    ggml_tensor * x = g.input("x", GGML_TYPE_F32, n, g.dim("rows"));
    ggml_tensor * v = ggml_view_2d(g.ctx, x, n - 1, x->ne[1], x->nb[1], sizeof(float)); // rows that do not touch
    g.output("argmax", ggml_argmax(g.ctx, x));
    g.output("top_k",  ggml_top_k(g.ctx, v, (int) g.dim("k")));
    g.output("filled", ggml_repeat_4d(g.ctx, ggml_reshape_3d(g.ctx, x, 1, n, x->ne[1]), 5, n, x->ne[1], 2));
    g.output("padded", ggml_pad_ext(g.ctx, v, 0, 0, 2, 1, 0, 0, 0, 0));
}

const ds_graph_def graphs[] = {
    { "main",           build_main           },
    { "leaves",         build_leaves         },
    { "chain",          build_chain          },
    { "huge",           build_huge           },
    { "throws",         build_throws         },
    { "view_of_weight", build_view_of_weight },
    { "rows_of_weight", build_rows_of_weight },
    { "twice",          build_twice          },
    { "cpu_ops",        build_cpu_ops        },
};

const ds_arch arch = {
    /*.abi        =*/ DS_ABI_VERSION,
    /*.name       =*/ "tiny",
    /*.model_new  =*/ model_new,
    /*.model_free =*/ model_free,
    /*.state_new  =*/ state_new,
    /*.state_free =*/ state_free,
    /*.n_graphs   =*/ (int) (sizeof(graphs)/sizeof(graphs[0])),
    /*.graphs     =*/ graphs,
};

} // namespace

const ds_arch * draftsmith_arch(void) {
    return &arch;
}
