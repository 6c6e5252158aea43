// The weights of one file, each in memory that suits the op which reads it.

#pragma once

#include "backends.hpp"
#include "ds_runtime.h"
#include "file.hpp"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ds {

struct weight_set {
    using progress_fn = int (*)(uint64_t done, uint64_t total, void * user);

    weight_set(std::shared_ptr<backend_set> backends, const char * path, const ds_weight_desc * descs, size_t n,
               bool use_mmap, progress_fn progress, void * user);

    // nullptr when there is no such weight
    ggml_tensor * find(const std::string & name) const;

    size_t size() const { return by_name.size(); }

    // "buffer type: bytes" lines
    std::string report() const;

private:
    struct entry {
        const ds_weight_desc * desc;
        ggml_tensor          * tensor;
    };

    // tensors that share a kind of memory
    struct group {
        ggml_context_ptr           ctx;
        ggml_backend_dev_t         dev;
        ggml_backend_buffer_type_t buft;
        bool                       mapped;
        std::vector<entry>         entries;
    };

    void place   (const ds_weight_desc * descs, size_t n, bool use_mmap);
    void map     (group & g);
    void allocate(group & g);
    void upload  (group & g, uint64_t & done, uint64_t total, progress_fn progress, void * user);
    void drop_unused_pages();

    std::shared_ptr<backend_set>                   backends;
    std::unique_ptr<model_file>                    file;
    std::vector<group>                             groups;
    std::vector<ggml_backend_buffer_ptr>           buffers;
    std::unordered_map<std::string, ggml_tensor *> by_name;
};

} // namespace ds
