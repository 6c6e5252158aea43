#include "weights.hpp"

#include "error.hpp"
#include "log.hpp"
#include "placement.hpp"

#include <algorithm>
#include <cinttypes>
#include <map>

namespace ds {

// device uploads go in pieces, so that an unmapped file needs little memory beside the weights
constexpr uint64_t UPLOAD_CHUNK = 64u << 20;

static void check_desc(const ds_weight_desc & d, uint64_t file_size) {
    if (d.type < 0 || d.type >= GGML_TYPE_COUNT || ggml_blck_size((ggml_type) d.type) == 0) {
        fail("weight '%s' has an unknown element type %d", d.name, d.type);
    }
    const auto    type = (ggml_type) d.type;
    const int64_t blck = ggml_blck_size(type);

    for (int64_t ne : d.ne) {
        if (ne < 1) {
            fail("weight '%s' has an impossible shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", d.name,
                 d.ne[0], d.ne[1], d.ne[2], d.ne[3]);
        }
    }
    if (d.ne[0] % blck != 0) {
        fail("weight '%s': rows of %" PRId64 " elements do not fill whole %s blocks of %" PRId64, d.name, d.ne[0],
             ggml_type_name(type), blck);
    }

    uint64_t n_bytes = ggml_type_size(type);
    bool     fits    = !__builtin_mul_overflow(n_bytes, (uint64_t) (d.ne[0] / blck), &n_bytes);
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        fits = fits && !__builtin_mul_overflow(n_bytes, (uint64_t) d.ne[i], &n_bytes);
    }
    if (!fits || n_bytes > INT64_MAX) {
        fail("weight '%s' is impossibly large", d.name);
    }
    if (n_bytes != d.nbytes) {
        fail("weight '%s' takes %" PRIu64 " bytes as %s, the file gives it %" PRIu64, d.name, n_bytes,
             ggml_type_name(type), d.nbytes);
    }
    if (d.offset > file_size || d.nbytes > file_size - d.offset) {
        fail("weight '%s' ends at byte %" PRIu64 ", the file at %" PRIu64 ": the file is truncated", d.name,
             d.offset + d.nbytes, file_size);
    }
}

weight_set::weight_set(std::shared_ptr<backend_set> set, const char * path, const ds_weight_desc * descs, size_t n,
                       bool use_mmap, progress_fn progress, void * user)
    : backends(std::move(set)), file(std::make_unique<model_file>(path)) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        check_desc(descs[i], file->size());
        total += descs[i].nbytes;
    }
    take_ggml_error();

    if (use_mmap) {
        file->map();
    }
    place(descs, n, use_mmap);

    uint64_t done = 0;
    for (group & g : groups) {
        if (g.mapped) {
            map(g);
        }
    }
    for (group & g : groups) {
        if (!g.mapped) {
            allocate(g);
        }
        upload(g, done, total, progress, user);
    }

    drop_unused_pages();
}

// whether tensors of that memory can be used where they lie in the mapped file
static bool can_map(const placement & p) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(p.dev, &props);
    return props.caps.buffer_from_host_ptr && p.buft == ggml_backend_dev_buffer_type(p.dev);
}

// decides where each weight goes, and makes its tensor
void weight_set::place(const ds_weight_desc * descs, size_t n, bool use_mmap) {
    for (size_t i = 0; i < n; i++) {
        const ds_weight_desc & d = descs[i];
        const placement        p = place_weight(*backends, d);

        // used in place when the file aligns it as the device needs it, else copied
        const bool mapped = use_mmap && can_map(p) && d.offset % ggml_backend_buft_get_alignment(p.buft) == 0;

        auto g = std::find_if(groups.begin(), groups.end(), [&](const group & g) {
            return p == placement { g.dev, g.buft } && g.mapped == mapped;
        });
        if (g == groups.end()) {
            ggml_context_ptr ctx { ggml_init({ ggml_tensor_overhead()*n, nullptr, /*no_alloc =*/ true }) };
            if (!ctx) {
                fail("out of memory");
            }
            groups.push_back({ std::move(ctx), p.dev, p.buft, mapped, {} });
            g = groups.end() - 1;
        }

        ggml_tensor * t = ggml_new_tensor(g->ctx.get(), (ggml_type) d.type, GGML_MAX_DIMS, d.ne);
        ggml_set_name(t, d.name);
        g->entries.push_back({ &d, t });

        if (!by_name.emplace(d.name, t).second) {
            fail("weight '%s' is listed twice", d.name);
        }
    }
}

// makes the tensors of a group point into the mapped file; falls back to copies when the device refuses
void weight_set::map(group & g) {
    uint64_t first = UINT64_MAX;
    uint64_t last  = 0;
    size_t   max_tensor_size = 0;
    for (const entry & e : g.entries) {
        first = std::min(first, e.desc->offset);
        last  = std::max(last,  e.desc->offset + e.desc->nbytes);
        max_tensor_size = std::max<size_t>(max_tensor_size, e.desc->nbytes);
    }

    // const_cast: ggml has no read-only buffers; a write to a weight would fault
    uint8_t * base = const_cast<uint8_t *>(file->data());
    ggml_backend_buffer_ptr buffer { ggml_backend_dev_buffer_from_host_ptr(g.dev, base + first, last - first, max_tensor_size) };

    bool fits = buffer != nullptr;
    for (const entry & e : g.entries) {
        // a device may want more bytes for a tensor than the file has there
        fits = fits && e.desc->offset - first + ggml_backend_buffer_get_alloc_size(buffer.get(), e.tensor) <= last - first;
    }
    if (!fits) {
        g.mapped = false;
        return;
    }

    uint8_t * dev_base = (uint8_t *) ggml_backend_buffer_get_base(buffer.get());
    for (const entry & e : g.entries) {
        if (ggml_backend_tensor_alloc(buffer.get(), e.tensor, dev_base + (e.desc->offset - first)) != GGML_STATUS_SUCCESS) {
            fail_ggml("weight '%s' cannot be mapped for %s", e.desc->name, ggml_backend_dev_name(g.dev));
        }
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    buffers.push_back(std::move(buffer));
}

void weight_set::allocate(group & g) {
    uint64_t n_bytes = 0;
    for (const entry & e : g.entries) {
        n_bytes += ggml_backend_buft_get_alloc_size(g.buft, e.tensor);
    }

    ggml_backend_buffer_ptr buffer { ggml_backend_alloc_ctx_tensors_from_buft(g.ctx.get(), g.buft) };
    if (!buffer) {
        fail_ggml("%s has no room for %.1f MiB of weights in %s memory", ggml_backend_dev_name(g.dev),
                  n_bytes/1024.0/1024.0, ggml_backend_buft_name(g.buft));
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    buffers.push_back(std::move(buffer));
}

// copies what is not mapped, in the order of the file
void weight_set::upload(group & g, uint64_t & done, uint64_t total, progress_fn progress, void * user) {
    std::sort(g.entries.begin(), g.entries.end(), [](const entry & a, const entry & b) { return a.desc->offset < b.desc->offset; });

    const bool whole = backends->is_cpu_extra(g.buft); // a repacked tensor is written in one go

    std::vector<uint8_t> staging;
    for (const entry & e : g.entries) {
        const uint64_t n_bytes = e.desc->nbytes;

        if (g.mapped) {
            // nothing to do
        } else if (file->data()) {
            ggml_backend_tensor_set(e.tensor, file->data() + e.desc->offset, 0, n_bytes);
        } else if (ggml_backend_buffer_is_host(e.tensor->buffer)) {
            file->read(e.tensor->data, e.desc->offset, n_bytes);
        } else {
            const uint64_t chunk = whole ? n_bytes : std::min(n_bytes, UPLOAD_CHUNK);
            staging.resize(std::max<size_t>(staging.size(), chunk));
            for (uint64_t at = 0; at < n_bytes; at += chunk) {
                const uint64_t n = std::min(chunk, n_bytes - at);
                file->read(staging.data(), e.desc->offset + at, n);
                ggml_backend_tensor_set(e.tensor, staging.data(), at, n);
            }
        }

        done += n_bytes;
        if (progress && progress(done, total, user) == 0) {
            fail("loading of %s was cancelled", file->path().c_str());
        }
    }
}

void weight_set::drop_unused_pages() {
    std::vector<byte_range> used;
    for (const group & g : groups) {
        if (!g.mapped) {
            continue;
        }
        for (const entry & e : g.entries) {
            used.push_back({ e.desc->offset, e.desc->offset + e.desc->nbytes });
        }
        // a device other than the CPU may have registered the whole range
        if (g.dev != backends->cpu()) {
            used.push_back({ g.entries.front().desc->offset, g.entries.back().desc->offset + g.entries.back().desc->nbytes });
        }
    }

    file->keep_only(std::move(used));

    // descs belong to the caller
    for (group & g : groups) {
        for (entry & e : g.entries) {
            e.desc = nullptr;
        }
    }
}

ggml_tensor * weight_set::find(const std::string & name) const {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
}

std::string weight_set::report() const {
    std::map<std::string, uint64_t> bytes;
    for (const group & g : groups) {
        for (const entry & e : g.entries) {
            bytes[ggml_backend_buffer_name(e.tensor->buffer)] += ggml_nbytes(e.tensor);
        }
    }

    std::string res;
    for (const auto & [name, n] : bytes) {
        res += format("%s: %" PRIu64 "\n", name.c_str(), n);
    }
    return res;
}

} // namespace ds
