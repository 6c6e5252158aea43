// The C interface of the native runtime, as Python loads it through cffi.
//
// Lines between CDEF_BEGIN and CDEF_END are read by cffi verbatim: plain C, no preprocessor.
// Every function that can fail returns NULL or a non-zero status and leaves one line in ds_last_error()
// (thread-local). Nothing here aborts the process on bad arguments.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// CDEF_BEGIN

typedef struct ds_backends ds_backends;
typedef struct ds_weights  ds_weights;
typedef struct ds_model    ds_model;
typedef struct ds_context  ds_context;

// how a weight is used, so that it can be placed where that op runs
enum ds_usage {
    DS_USE_OTHER      = 0,
    DS_USE_MUL_MAT    = 1,
    DS_USE_GET_ROWS   = 2,
    DS_USE_MUL_MAT_ID = 4
};

typedef struct {
    const char * name;
    int32_t      type;      // enum ggml_type
    int32_t      usage;     // OR of enum ds_usage
    int64_t      ne[4];
    uint64_t     offset;    // absolute, bytes from the start of the file
    uint64_t     nbytes;
} ds_weight_desc;

typedef struct {
    const char    * name;
    int32_t         n;      // number of values
    int32_t         is_float;
    const int64_t * i;      // n values when !is_float
    const double  * f;      // n values when is_float
} ds_param;

typedef struct {
    const char * name;      // "kv.k"
    int32_t      il;        // layer, or -1
    int32_t      type;      // enum ggml_type
    int64_t      ne[4];
} ds_state_desc;

typedef struct {
    const char * name;
    int64_t      value;
} ds_dim;

typedef struct {
    const char * name;
    const void * data;
    uint64_t     nbytes;
} ds_input;

typedef struct {
    const char * name;
    int32_t      il;
} ds_tap;

typedef struct {
    const char * name;      // with "-il" appended for values of a layer
    const char * op;        // ggml op name
    const char * backend;
    int32_t      type;
    int64_t      ne[4];
    uint64_t     nb[4];
    const void * data;      // host copy, valid until the next run of the context (NULL unless traced)
    uint64_t     nbytes;
} ds_node;

typedef struct {
    int64_t  n_runs;        // graphs computed
    int64_t  n_builds;      // graphs built (n_runs - n_builds were reused)
    int32_t  n_nodes;       // of the last graph
    int32_t  n_splits;
    uint64_t compute_bytes; // compute buffers of all kept graphs
    uint64_t state_bytes;
    int64_t  build_us;      // building and allocating, total
    int64_t  compute_us;    // computing, total
} ds_stats;

const char * ds_last_error(void);

// level: 0 quiet, 1 errors, 2 warnings, 3 info of ggml itself, to stderr
void ds_set_log_level(int level);

// devices: ggml device names in order of preference; the CPU is always added last. RPC servers are "RPC" endpoints
// registered beforehand by ds_rpc_add. n_threads <= 0: number of physical cores
int           ds_rpc_add(const char * endpoint);
ds_backends * ds_backends_new(const char * const * devices, int n_devices, int n_threads);
void          ds_backends_free(ds_backends * b);
int           ds_backends_n_threads(const ds_backends * b);

// progress(done, total, user) is called while loading; return 0 to cancel
ds_weights * ds_weights_load(ds_backends * b, const char * path, const ds_weight_desc * descs, size_t n, int use_mmap,
                             int (*progress)(uint64_t, uint64_t, void *), void * user);
void         ds_weights_free(ds_weights * w);
// writes "buffer type: bytes" lines
size_t       ds_weights_report(const ds_weights * w, char * buf, size_t size);

// path: the compiled architecture. Weights are looked up in own first; names in shared (GGUF names) come from other.
ds_model * ds_model_new(const char * path, const ds_param * params, size_t n_params, ds_weights * own, ds_weights * other,
                        const char * const * shared, const char * const * shared_as, size_t n_shared);
void       ds_model_free(ds_model * m);
int        ds_model_n_graphs(const ds_model * m);
const char * ds_model_graph_name(const ds_model * m, int i);

// max_graphs: how many built graphs to keep (least recently used goes first)
ds_context * ds_context_new(ds_backends * b, ds_model * m, const ds_state_desc * state, size_t n_state, int max_graphs);
void         ds_context_free(ds_context * c);
void         ds_context_clear(ds_context * c);            // zeroes the state

// Runs graph number `graph` and waits. max_nodes: upper bound of the graph's size. outputs and taps are what is wanted.
int ds_run(ds_context * c, int graph, int max_nodes,
           const ds_dim * dims, size_t n_dims, const ds_input * inputs, size_t n_inputs,
           const char * const * outputs, size_t n_outputs, const ds_tap * taps, size_t n_taps, int trace);

// after ds_run: element type, shape and bytes of a wanted output or tap (il = -1: output); status != 0 when unknown
int ds_result_info(ds_context * c, const char * name, int il, int32_t * type, int64_t * ne, uint64_t * nbytes);
int ds_result_get (ds_context * c, const char * name, int il, void * dst, uint64_t nbytes);

// nodes of the last graph; data is filled for named nodes when that run had trace != 0
int64_t ds_nodes(ds_context * c);
int     ds_node_get(ds_context * c, int64_t i, ds_node * node);

void ds_get_stats(const ds_context * c, ds_stats * stats);

// state in and out as raw bytes (whole tensor), for checkpoints and tests
int ds_state_get(ds_context * c, const char * name, int il, void * dst, uint64_t nbytes);
int ds_state_set(ds_context * c, const char * name, int il, const void * src, uint64_t nbytes);

// CDEF_END

#ifdef __cplusplus
}
#endif
