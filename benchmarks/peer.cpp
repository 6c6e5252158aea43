// llama.cpp's side of vs_llama_cpp.py: a process that loads a target, and perhaps a drafter, and times what it is told on
// standard input. One command a line, one answer a line: nanoseconds, or "error: ...".
//
//   prefill N     empty cache, N tokens in batches, logits of the last one     (as llama-bench's pp)
//   decode N      empty cache, N tokens one by one, logits of each             (as llama-bench's tg)
//   begin N       decode and inject a prompt of N tokens, not timed
//   draft         one draft behind the prompt, by llama.cpp's own speculative driver; its rows are removed again
//   verify        the last token and a full draft through the target, logits of each sampled; rows removed again
//   inject        the features of those rows into the drafter's cache; rows removed again
//   rss           peak resident memory, in bytes
//   reused        graphs reused by (target drafter), as llama.cpp counts them

#include "common.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"
#include "speculative.h"

#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

static clockid_t used_clock = CLOCK_MONOTONIC;

static int64_t now_ns() {
    timespec t;
    clock_gettime(used_clock, &t);
    return (int64_t) t.tv_sec*1000000000 + t.tv_nsec;
}

struct peer {
    common_params params;

    common_init_result_ptr              init;
    common_speculative_init_result_ptr  init_dft;
    common_speculative_ptr              spec;
    common_sampler_ptr                  smpl;

    llama_context * ctx     = nullptr;
    llama_context * ctx_dft = nullptr;

    llama_tokens prompt;
    llama_tokens draft;
    std::mt19937 rng { 0 };

    int32_t n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))); }

    llama_token any_token() { return (llama_token) (rng() % n_vocab()); }

    // a DSpark block predicts from its anchor on, all others from the row behind it
    void choose_type(int block) {
        params.speculative.types = common_speculative_types_from_gguf(params.speculative.draft.mparams.path);
        if (params.speculative.types.empty()) {
            throw std::runtime_error("llama.cpp offers no speculative decoding for this drafter");
        }
        const bool from_anchor = params.speculative.types.front() == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK;
        params.speculative.draft.n_max = from_anchor ? block : block - 1;
    }

    bool has_draft() const { return ctx_dft != nullptr; }

    void load() {
        llama_backend_init();
        if (params.speculative.has_dft()) {
            // as examples/speculative-simple does it
            const auto limits = common_speculative_get_output_limits(
                    params.n_batch, params.n_parallel, common_speculative_n_max(&params.speculative));
            params.n_outputs_max         = limits.total;
            params.n_outputs_max_per_seq = limits.per_seq;
        }
        init = common_init_from_params(params);
        ctx  = init->context();
        if (!ctx) {
            throw std::runtime_error("the target cannot be loaded");
        }
        if (!params.speculative.has_dft()) {
            return;
        }

        common_params params_dft = common_base_params_to_speculative(params);
        init_dft = common_speculative_init_from_params(params_dft, init->model(), ctx);
        ctx_dft  = init_dft->context();
        if (!ctx_dft) {
            throw std::runtime_error("the drafter cannot be loaded");
        }
        params.speculative.draft.ctx_tgt = ctx;
        params.speculative.draft.ctx_dft = ctx_dft;
        spec.reset(common_speculative_init(params.speculative, 1));
        if (!spec) {
            throw std::runtime_error("llama.cpp offers no speculative decoding for this pair");
        }
        params.sampling.temp = 0.0f;
        smpl.reset(common_sampler_init(init->model(), params.sampling));
    }

    void process(common_batch & batch) {
        if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
            throw std::runtime_error("llama_process failed");
        }
    }

    int64_t prefill(int n) {
        llama_memory_clear(llama_get_memory(ctx), false);
        llama_tokens tokens(n);
        for (auto & t : tokens) {
            t = any_token();
        }
        const int64_t start = now_ns();
        for (int at = 0; at < n; at += params.n_batch) {
            common_batch batch = common_batch_get_one(ctx, tokens.data() + at, std::min(params.n_batch, n - at));
            process(batch);
        }
        llama_synchronize(ctx);
        return now_ns() - start;
    }

    int64_t decode(int n) {
        llama_memory_clear(llama_get_memory(ctx), false);
        common_batch batch(ctx);
        const int64_t start = now_ns();
        for (int i = 0; i < n; i++) {
            batch.clear();
            batch.add(any_token(), i, 0, true);
            process(batch);
            llama_synchronize(ctx);
        }
        return now_ns() - start;
    }

    void begin(int n) {
        llama_memory_clear(llama_get_memory(ctx),     false);
        llama_memory_clear(llama_get_memory(ctx_dft), false);
        prompt.resize(n);
        common_batch batch(ctx);
        for (int i = 0; i < n; i++) {
            prompt[i] = any_token();
            batch.add(prompt[i], i, 0, false);
        }
        process(batch);
        if (!common_speculative_process(spec.get(), batch)) {
            throw std::runtime_error("the prompt cannot be injected");
        }
        common_speculative_begin(spec.get(), 0, prompt);
    }

    int64_t propose() {
        const llama_token last = any_token();
        draft.clear();
        const int64_t start = now_ns();
        common_speculative_get_draft_params(spec.get(), 0) = {
            /* .drafting = */ true,
            /* .n_max    = */ params.speculative.draft.n_max,
            /* .pos0     = */ (llama_pos) prompt.size(),
            /* .id_last  = */ last,
            /* .prompt   = */ &prompt,
            /* .result   = */ &draft,
        };
        common_speculative_draft(spec.get());
        llama_memory_seq_rm(llama_get_memory(ctx_dft), 0, (llama_pos) prompt.size(), -1);
        const int64_t ns = now_ns() - start;
        if ((int) draft.size() != params.speculative.draft.n_max) {
            throw std::runtime_error("a draft of " + std::to_string(draft.size()) + " tokens");
        }
        return ns;
    }

    // times the target's pass (with sampling of every row) or the injection of its features
    int64_t verify(bool time_inject) {
        const int n_draft = params.speculative.draft.n_max;
        const int n_past  = (int) prompt.size();

        common_batch batch(ctx);
        int64_t start = now_ns();
        for (int i = 0; i <= n_draft; i++) {
            batch.add(any_token(), n_past + i, 0, true);
        }
        process(batch);
        for (int i = 0; i <= n_draft; i++) {
            common_sampler_sample(smpl.get(), ctx, i, false);
        }
        llama_memory_seq_rm(llama_get_memory(ctx), 0, n_past, -1);
        const int64_t ns_verify = now_ns() - start;

        start = now_ns();
        if (!common_speculative_process(spec.get(), batch)) {
            throw std::runtime_error("injection failed");
        }
        llama_synchronize(ctx_dft);
        llama_memory_seq_rm(llama_get_memory(ctx_dft), 0, n_past, -1);
        const int64_t ns_inject = now_ns() - start;
        return time_inject ? ns_inject : ns_verify;
    }

    std::string reused() const {
        const int tgt = llama_perf_context(ctx).n_reused;
        const int dft = has_draft() ? llama_perf_context(ctx_dft).n_reused : 0;
        return std::to_string(tgt) + " " + std::to_string(dft);
    }

    static int64_t peak_rss() {
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
        return usage.ru_maxrss;
#else
        return (int64_t) usage.ru_maxrss*1024;
#endif
    }

    std::string answer(const std::string & line) {
        std::istringstream in(line);
        std::string what;
        int n = 0;
        in >> what >> n;
        if (what == "rss")    { return std::to_string(peak_rss()); }
        if (what == "reused") { return reused(); }
        if (what == "prefill" && n > 0) { return std::to_string(prefill(n)); }
        if (what == "decode"  && n > 0) { return std::to_string(decode(n)); }
        if (has_draft()) {
            if (what == "begin" && n > 0) { begin(n); return "0"; }
            if (what == "draft")  { return std::to_string(propose()); }
            if (what == "verify") { return std::to_string(verify(false)); }
            if (what == "inject") { return std::to_string(verify(true)); }
        }
        throw std::runtime_error("unknown command: " + line);
    }
};

static ggml_type kv_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) {
            return (ggml_type) i;
        }
    }
    throw std::runtime_error("unknown cache type: " + name);
}

int main(int argc, char ** argv) {
    peer p;
    int block = 16;
    try {
        common_init();
        common_log_set_verbosity_thold(-1);
        p.params.warmup      = true;
        p.params.fit_params  = false;
        p.params.n_parallel  = 1;
        p.params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        for (int i = 1; i + 1 < argc; i += 2) {
            const std::string key = argv[i], value = argv[i + 1];
            if      (key == "--model")   { p.params.model.path = value; }
            else if (key == "--draft")   { p.params.speculative.draft.mparams.path = value; }
            else if (key == "--threads") { p.params.cpuparams.n_threads = p.params.cpuparams_batch.n_threads = std::stoi(value); }
            else if (key == "--ctx")     { p.params.n_ctx = std::stoi(value); }
            else if (key == "--block")   { block = std::stoi(value); }
            else if (key == "--flash")   { p.params.flash_attn_type = value == "1" ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED; }
            else if (key == "--kv-type") { p.params.cache_type_k = p.params.cache_type_v = kv_type(value);
                                           p.params.speculative.draft.cache_type_k = p.params.speculative.draft.cache_type_v = kv_type(value); }
            else if (key == "--clock")   { used_clock = value == "cpu" ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC; }
            else if (key == "--sampler") { p.params.speculative.draft.backend_sampling = value == "graph"; }
            else { throw std::runtime_error("unknown option: " + key); }
        }
        if (p.params.speculative.has_dft()) {
            p.choose_type(block);
        }
        p.load();
    } catch (const std::exception & e) {
        std::cout << "error: " << e.what() << std::endl;
        return 1;
    }
    std::cout << "ready" << std::endl;

    std::string line;
    while (std::getline(std::cin, line) && line != "quit") {
        try {
            std::cout << p.answer(line) << std::endl;
        } catch (const std::exception & e) {
            std::cout << "error: " << e.what() << std::endl;
        }
    }
    p.spec.reset();
    return 0;
}
