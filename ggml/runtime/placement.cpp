#include "placement.hpp"

#include "error.hpp"

#include <algorithm>

namespace ds {

// batch of the probes; what a backend supports does not depend on it
constexpr int64_t PROBE_TOKENS = 512;

// the smallest op of that usage which reads w; nullptr when w has no such shape
static ggml_tensor * probe_op(ggml_context * ctx, ggml_tensor * w, ds_usage usage) {
    switch (usage) {
        case DS_USE_MUL_MAT:
            {
                ggml_tensor * x = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, w->ne[0], PROBE_TOKENS, w->ne[2], w->ne[3]);
                return ggml_mul_mat(ctx, w, x);
            }
        case DS_USE_GET_ROWS:
            {
                ggml_tensor * ids = ggml_new_tensor_3d(ctx, GGML_TYPE_I32, PROBE_TOKENS, w->ne[2], w->ne[3]);
                return ggml_get_rows(ctx, w, ids);
            }
        case DS_USE_MUL_MAT_ID:
            {
                if (w->ne[3] != 1) {
                    return nullptr;
                }
                const int64_t n_used = std::min<int64_t>(w->ne[2], 8);
                ggml_tensor * x      = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w->ne[0], n_used, PROBE_TOKENS);
                ggml_tensor * ids    = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_used, PROBE_TOKENS);
                return ggml_mul_mat_id(ctx, w, x, ids);
            }
        case DS_USE_OTHER:
            break;
    }
    return nullptr;
}

// whether dev runs every op that reads the weight when its bytes are in buft
static bool supports(const placement & p, const ds_weight_desc & desc) {
    ggml_context_ptr ctx { ggml_init({ ggml_tensor_overhead()*16, nullptr, /*no_alloc =*/ true }) };
    if (!ctx) {
        fail("out of memory");
    }

    // supports_op looks at the buffer type of the operands, so the weight of the probe gets an empty buffer of it
    ggml_backend_buffer_ptr buffer { ggml_backend_buft_alloc_buffer(p.buft, 0) };
    if (!buffer) {
        return false;
    }
    ggml_tensor * w = ggml_new_tensor(ctx.get(), (ggml_type) desc.type, GGML_MAX_DIMS, desc.ne);
    w->buffer = buffer.get();

    for (ds_usage usage : { DS_USE_MUL_MAT, DS_USE_GET_ROWS, DS_USE_MUL_MAT_ID }) {
        if (desc.usage & usage) {
            const ggml_tensor * op = probe_op(ctx.get(), w, usage);
            if (!op || !ggml_backend_dev_supports_op(p.dev, op)) {
                return false;
            }
        }
    }
    return true;
}

placement place_weight(const backend_set & backends, const ds_weight_desc & desc) {
    ggml_backend_dev_t cpu = backends.cpu();

    // a table of which single rows are read is not worth the memory of a device
    if (desc.usage != DS_USE_GET_ROWS) {
        for (ggml_backend_dev_t dev : backends.devs) {
            const placement p = { dev, ggml_backend_dev_buffer_type(dev) };
            if (dev != cpu && !ggml_backend_buft_is_host(p.buft) && supports(p, desc)) {
                return p;
            }
        }
    }

    if (desc.usage & (DS_USE_MUL_MAT | DS_USE_MUL_MAT_ID)) {
        for (ggml_backend_buffer_type_t buft : backends.cpu_extra_bufts()) {
            if (supports({ cpu, buft }, desc)) {
                return { cpu, buft };
            }
        }
    }

    return { cpu, ggml_backend_dev_buffer_type(cpu) };
}

} // namespace ds
