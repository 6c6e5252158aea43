#include "argmax.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ds {

constexpr int64_t LANES = 16;   // compared side by side: the compiler makes vectors of them
constexpr int64_t BLOCK = 1024;

static float max_of_block(const float * x) {
    float lanes[LANES];
    std::copy(x, x + LANES, lanes);
    for (int64_t i = LANES; i < BLOCK; i += LANES) {
        for (int64_t k = 0; k < LANES; k++) {
            lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
        }
    }
    return *std::max_element(lanes, lanes + LANES);
}

// the last of several equal values, as ggml has it
static int32_t argmax(const float * x, int64_t n) {
    const int64_t n_whole = n - n % BLOCK;

    float   best  = -INFINITY;
    int64_t start = 0;
    for (int64_t i = 0; i < n_whole; i += BLOCK) {
        const float value = max_of_block(x + i);
        if (value >= best) {
            best  = value;
            start = i;
        }
    }

    int64_t res = 0;
    for (int64_t i = start; i < std::min(start + BLOCK, n_whole); i++) {
        if (x[i] == best) {
            res = i;
        }
    }
    for (int64_t i = n_whole; i < n; i++) {
        if (x[i] >= best) {
            best = x[i];
            res  = i;
        }
    }
    return (int32_t) res;
}

static void compute(ggml_tensor * dst, int ith, int nth, void * /*user_data*/) {
    const ggml_tensor * rows = dst->src[0];
    for (int64_t i = ith; i < rows->ne[1]; i += nth) {
        const auto * row = (const float *) ((const char *) rows->data + i*rows->nb[1]);
        ((int32_t *) dst->data)[i] = argmax(row, rows->ne[0]);
    }
}

void replace_argmax(ggml_context * ctx, ggml_cgraph * gf) {
    const ggml_tensor * own = nullptr;
    for (int i = 0; i < ggml_graph_n_nodes(gf); i++) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op != GGML_OP_ARGMAX || node->src[0]->type != GGML_TYPE_F32) {
            continue;
        }
        if (!own) {
            own = ggml_custom_4d(ctx, GGML_TYPE_I32, 1, 1, 1, 1, &node->src[0], 1, compute, GGML_N_TASKS_MAX, nullptr);
        }
        node->op = own->op;
        memcpy(node->op_params, own->op_params, sizeof(node->op_params));
    }
}

bool is_replaced_argmax(const ggml_tensor * node) {
    return node->op == GGML_OP_CUSTOM;
}

} // namespace ds
