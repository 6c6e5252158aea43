#include "model.hpp"

#include "error.hpp"

#include <dlfcn.h>

#include <cstring>

namespace ds {

std::string with_layer(const char * name, int il) {
    std::string res = name;
    for (const char * mark : { "{il}", "%d" }) {
        const size_t at = res.find(mark);
        if (at != std::string::npos) {
            if (il < 0) {
                fail("'%s' was asked for without its layer", name);
            }
            return res.replace(at, strlen(mark), std::to_string(il));
        }
    }
    return res;
}

//
// params
//

params::params(const ds_param * list, size_t n) {
    for (size_t k = 0; k < n; k++) {
        const ds_param & p = list[k];
        values v;
        v.is_float = p.is_float != 0;
        if (v.is_float) {
            v.f.assign(p.f, p.f + p.n);
        } else {
            v.i.assign(p.i, p.i + p.n);
        }
        if (!by_name.emplace(p.name, std::move(v)).second) {
            fail("hyperparameter '%s' is given twice", p.name);
        }
    }
}

const params::values & params::find(const char * name, int i) const {
    const auto it = by_name.find(name);
    if (it == by_name.end()) {
        fail("hyperparameter '%s' is missing", name);
    }
    const values & v = it->second;
    const size_t   n = v.is_float ? v.f.size() : v.i.size();
    if (i < 0 || (size_t) i >= n) {
        fail("hyperparameter '%s' has %zu values, number %d was asked for", name, n, i);
    }
    return v;
}

int64_t params::get_i64(const char * name, int i) const {
    const values & v = find(name, i);
    if (v.is_float) {
        fail("hyperparameter '%s' is a float, an integer was asked for", name);
    }
    return v.i[i];
}

float params::get_f32(const char * name, int i) const {
    const values & v = find(name, i);
    return v.is_float ? (float) v.f[i] : (float) v.i[i];
}

bool params::has(const char * name) const {
    return by_name.count(name) > 0;
}

//
// arch_library
//

arch_library::arch_library(const char * path) {
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fail("cannot load the architecture: %s", dlerror());
    }

    auto get = (const ds_arch * (*)()) dlsym(handle, "draftsmith_arch");
    arch = get ? get() : nullptr;
    if (!arch || arch->abi != DS_ABI_VERSION) {
        const std::string what = !get || !arch ? "exports no draftsmith_arch()" :
            format("was built for version %u of the runtime's interface, this is version %d", arch->abi, DS_ABI_VERSION);
        dlclose(handle);
        fail("%s %s", path, what.c_str());
    }
}

arch_library::~arch_library() {
    dlclose(handle);
}

//
// model
//

model::model(const char * path, const ds_param * param_list, size_t n_params,
             std::shared_ptr<weight_set> own_weights, std::shared_ptr<weight_set> other_weights,
             const char * const * shared_names, const char * const * shared_as, size_t n_shared)
    : own(std::move(own_weights)), other(std::move(other_weights)), lib(path) {
    for (size_t i = 0; i < n_shared; i++) {
        if (!other) {
            fail("weight '%s' is shared, but there is no model to share it with", shared_names[i]);
        }
        if (!other->find(shared_as[i])) {
            fail("weight '%s' is shared as '%s', which the other model does not have", shared_names[i], shared_as[i]);
        }
        shared.emplace(shared_names[i], shared_as[i]);
    }

    const params hparams(param_list, n_params);
    instance = lib->model_new(hparams, *this);
}

model::~model() {
    if (instance) {
        lib->model_free(instance);
    }
}

ggml_tensor * model::weight(const char * format, int il) const {
    const std::string name = with_layer(format, il);
    if (own) {
        if (ggml_tensor * t = own->find(name)) {
            return t;
        }
    }
    const auto it = shared.find(name);
    return it == shared.end() ? nullptr : other->find(it->second);
}

ggml_tensor * model::state(const char * name, int /*il*/) const {
    fail("state '%s' was asked for while loading the model; it belongs to a context", name);
}

size_t model::n_weights() const {
    return (own ? own->size() : 0) + (other ? other->size() : 0);
}

const ds_graph_def & model::graph(int i) const {
    if (i < 0 || i >= lib->n_graphs) {
        fail("'%s' has %d graphs, number %d was asked for", lib->name, lib->n_graphs, i);
    }
    return lib->graphs[i];
}

} // namespace ds
