// Where a weight lives: the first memory of the preferred device that can run the ops which read it.

#pragma once

#include "backends.hpp"
#include "ds_runtime.h"

namespace ds {

struct placement {
    ggml_backend_dev_t         dev;
    ggml_backend_buffer_type_t buft;

    bool operator==(const placement & o) const { return dev == o.dev && buft == o.buft; }
};

placement place_weight(const backend_set & backends, const ds_weight_desc & desc);

} // namespace ds
