// A compiled architecture with its weights.

#pragma once

#include "draftsmith.h"
#include "ds_runtime.h"
#include "weights.hpp"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ds {

// "blk.{il}.attn_q.weight" or "blk.%d.attn_q.weight" with the layer filled in
std::string with_layer(const char * name, int il);

class params final : public ds_params {
public:
    params(const ds_param * list, size_t n);

    int64_t get_i64(const char * name, int i) const override;
    float   get_f32(const char * name, int i) const override;
    bool    has    (const char * name)        const override;

private:
    struct values {
        bool                 is_float;
        std::vector<int64_t> i;
        std::vector<double>  f;
    };

    const values & find(const char * name, int i) const;

    std::unordered_map<std::string, values> by_name;
};

// the shared object of an architecture, loaded
class arch_library {
public:
    explicit arch_library(const char * path);
    ~arch_library();

    arch_library(const arch_library &) = delete;
    arch_library & operator=(const arch_library &) = delete;

    const ds_arch * operator->() const { return arch; }

private:
    void          * handle = nullptr;
    const ds_arch * arch   = nullptr;
};

class model final : public ds_tensors {
public:
    model(const char * path, const ds_param * param_list, size_t n_params,
          std::shared_ptr<weight_set> own, std::shared_ptr<weight_set> other,
          const char * const * shared, const char * const * shared_as, size_t n_shared);
    ~model() override;

    ggml_tensor * weight(const char * format, int il) const override;
    ggml_tensor * state (const char * name,   int il) const override; // a model has none

    int    n_graphs() const { return lib->n_graphs; }
    size_t n_weights() const;

    // throws when there is no such graph
    const ds_graph_def & graph(int i) const;

    const arch_library & arch() const { return lib; }
    const void *         data() const { return instance; }

private:
    std::shared_ptr<weight_set>                  own;
    std::shared_ptr<weight_set>                  other;
    std::unordered_map<std::string, std::string> shared; // name in the graph -> name in other
    arch_library                                 lib;
    void *                                       instance = nullptr;
};

} // namespace ds
