#include "cpu_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
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

static const float * row_of(const ggml_tensor * t, int64_t i) {
    return (const float *) ((const char *) t->data + i*t->nb[1]);
}

//
// argmax
//

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

static void compute_argmax(ggml_tensor * dst, int ith, int nth, void * /*user_data*/) {
    const ggml_tensor * rows = dst->src[0];
    for (int64_t i = ith; i < rows->ne[1]; i += nth) {
        ((int32_t *) dst->data)[i] = argmax(row_of(rows, i), rows->ne[0]);
    }
}

//
// top_k
//

// the k best as a heap whose front is the worst of them; few blocks hold anything better
static void top_k(const float * x, int64_t n, int32_t * best, int64_t k) {
    const auto better = [x](int32_t a, int32_t b) { return x[a] > x[b]; };

    for (int64_t i = 0; i < k; i++) {
        best[i] = (int32_t) i;
    }
    std::make_heap(best, best + k, better);

    for (int64_t i = k; i < n; ) {
        if (i % BLOCK == 0 && i + BLOCK <= n && !(max_of_block(x + i) > x[best[0]])) {
            i += BLOCK;
            continue;
        }
        for (const int64_t end = std::min(n, i - i % BLOCK + BLOCK); i < end; i++) {
            if (x[i] > x[best[0]]) {
                std::pop_heap(best, best + k, better);
                best[k - 1] = (int32_t) i;
                std::push_heap(best, best + k, better);
            }
        }
    }

    std::sort_heap(best, best + k, better);
    if (k > 1) {
        std::swap(best[0], best[1]); // ggml does so, lest anyone rely on the order
    }
}

static void compute_top_k(ggml_tensor * dst, int ith, int nth, void * /*user_data*/) {
    const ggml_tensor * rows = dst->src[0];
    for (int64_t i = ith; i < rows->ne[1]; i += nth) {
        top_k(row_of(rows, i), rows->ne[0], (int32_t *) ((char *) dst->data + i*dst->nb[1]), dst->ne[0]);
    }
}

//
// repeat, where the repeated rows are single values
//

static void compute_fill(ggml_tensor * dst, int ith, int nth, void * /*user_data*/) {
    const ggml_tensor * src = dst->src[0];
    for (int64_t i = ith; i < ggml_nrows(dst); i += nth) {
        const int64_t i1 = i % dst->ne[1];
        const int64_t i2 = i / dst->ne[1] % dst->ne[2];
        const int64_t i3 = i / dst->ne[1] / dst->ne[2];

        const char * value = (const char *) src->data +
            i1 % src->ne[1]*src->nb[1] + i2 % src->ne[2]*src->nb[2] + i3 % src->ne[3]*src->nb[3];
        std::fill_n((float *) ((char *) dst->data + i1*dst->nb[1] + i2*dst->nb[2] + i3*dst->nb[3]), dst->ne[0],
                    *(const float *) value);
    }
}

//
// pad, where whole rows of zeros are added in front and behind
//

static void compute_pad(ggml_tensor * dst, int ith, int nth, void * user_data) {
    const ggml_tensor * src   = dst->src[0];
    const int64_t       front = (intptr_t) user_data;
    for (int64_t i = ith; i < ggml_nrows(dst); i += nth) {
        const int64_t i1 = i % dst->ne[1];
        const int64_t i2 = i / dst->ne[1];

        float * row = (float *) ((char *) dst->data + i1*dst->nb[1] + i2*dst->nb[2]);
        if (i1 < front || i1 - front >= src->ne[1]) {
            std::fill_n(row, dst->ne[0], 0.0f);
        } else {
            memcpy(row, (const char *) src->data + (i1 - front)*src->nb[1] + i2*src->nb[2], dst->nb[1]);
        }
    }
}

static int32_t param(const ggml_tensor * node, int i) {
    return node->op_params[i];
}

//
// replacement
//

struct replacement {
    ggml_op          op;
    ggml_custom_op_t compute;
};

constexpr replacement REPLACEMENTS[] = {
    { GGML_OP_ARGMAX, compute_argmax },
    { GGML_OP_TOP_K,  compute_top_k  },
    { GGML_OP_REPEAT, compute_fill   },
    { GGML_OP_PAD,    compute_pad    },
};

static bool is_ours(const ggml_tensor * node, ggml_op op) {
    const ggml_tensor * src = node->src[0];
    if (node->op != op || src->type != GGML_TYPE_F32 || src->nb[0] != sizeof(float)) {
        return false;
    }
    switch (op) {
        case GGML_OP_REPEAT: return src->ne[0] == 1;
        case GGML_OP_TOP_K:  return src->ne[2] == 1 && src->ne[3] == 1;
        case GGML_OP_PAD:    // in front, behind: of each dim; then whether it wraps around
            return node->ne[0] == src->ne[0] && node->ne[2] == src->ne[2] && node->ne[3] == 1 &&
                param(node, 0) == 0 && param(node, 4) == 0 && param(node, 8) == 0;
        default:             return true;
    }
}

void replace_cpu_ops(ggml_context * ctx, ggml_cgraph * gf) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); i++) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        for (const replacement & r : REPLACEMENTS) {
            if (!is_ours(node, r.op)) {
                continue;
            }
            void * user_data = r.op == GGML_OP_PAD ? (void *) (intptr_t) param(node, 2) : nullptr;
            const ggml_tensor * own =
                ggml_custom_4d(ctx, node->type, 1, 1, 1, 1, &node->src[0], 1, r.compute, GGML_N_TASKS_MAX, user_data);
            node->op = own->op;
            memcpy(node->op_params, own->op_params, sizeof(node->op_params));
            break;
        }
    }
}

ggml_op original_op(const ggml_tensor * node) {
    if (node->op == GGML_OP_CUSTOM) {
        ggml_custom_op_t compute;
        memcpy(&compute, node->op_params, sizeof(compute)); // the first of its parameters
        for (const replacement & r : REPLACEMENTS) {
            if (r.compute == compute) {
                return r.op;
            }
        }
    }
    return node->op;
}

} // namespace ds
