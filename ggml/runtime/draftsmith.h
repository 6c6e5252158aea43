// What a generated architecture source sees of the runtime.
//
// A generated file defines one ds_arch and exports it as draftsmith_arch(). Everything here is
// passed by reference during a call and never kept by the generated code, except the tensors.

#pragma once

#include "ggml.h"

#include <cstdint>

// Bumped whenever a struct of this file changes: a stale library is refused, not misread.
#define DS_ABI_VERSION 1

// Hyperparameters by field name; resolved, defaulted and range-checked before they come here.
// A missing name is a bug of the generator and throws std::runtime_error.
struct ds_params {
    virtual ~ds_params() = default;

    virtual int64_t get_i64(const char * name, int i = 0) const = 0;
    virtual float   get_f32(const char * name, int i = 0) const = 0;
    virtual bool    has    (const char * name) const = 0;
};

// Tensors by name. Names of weights are those of the GGUF with {il} filled in ("blk.3.attn_q.weight"); names of
// state are the Python ones ("kv.k"), one tensor a layer.
struct ds_tensors {
    virtual ~ds_tensors() = default;

    // nullptr when the model has no such tensor
    virtual ggml_tensor * weight(const char * format, int il = -1) const = 0;
    virtual ggml_tensor * state (const char * name,   int il = -1) const = 0;
};

// One graph under construction.
struct ds_graph {
    ggml_context * ctx = nullptr;
    ggml_cgraph  * gf  = nullptr;

    virtual ~ds_graph() = default;

    // run-time dim by name (n_tokens, n_kv, ...)
    virtual int64_t dim(const char * name) const = 0;

    // a host input; filled before every compute
    virtual ggml_tensor * input(const char * name, ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) = 0;

    // a named result; part of the graph only when the caller asked for it
    virtual void output(const char * name, ggml_tensor * t) = 0;

    // an inner value that a caller may ask for by name and layer ("layer_input", 3)
    virtual void tap(const char * name, int il, ggml_tensor * t) = 0;

    // a write to state; always part of the graph. Returns t.
    virtual ggml_tensor * write(ggml_tensor * t) = 0;

    // the author's name of a value: "name" or "name-il"
    virtual void cb(ggml_tensor * t, const char * name, int il = -1) = 0;
};

struct ds_graph_def {
    const char * name;
    void (*build)(const void * model, const void * state, ds_graph & g);
};

struct ds_arch {
    uint32_t     abi;      // DS_ABI_VERSION
    const char * name;     // "qwen3"

    // Both throw std::runtime_error when a guard of the file does not hold.
    void * (*model_new) (const ds_params & params, const ds_tensors & tensors);
    void   (*model_free)(void * model);

    void * (*state_new) (const void * model, const ds_tensors & tensors);
    void   (*state_free)(void * state);

    int                  n_graphs;
    const ds_graph_def * graphs;
};

// exported although everything else of a generated library is hidden
extern "C" __attribute__((visibility("default"))) const ds_arch * draftsmith_arch(void);
