#include "log.hpp"

#include "ggml.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace ds {

static std::atomic<int>         g_level { 1 };
static thread_local std::string g_ggml_error;

static int level_of(ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return 1;
        case GGML_LOG_LEVEL_WARN:  return 2;
        case GGML_LOG_LEVEL_INFO:  return 3;
        default:                   return 4;
    }
}

static void log_callback(ggml_log_level level, const char * text, void * /*user_data*/) {
    // a continuation belongs to the message before it
    static thread_local int current = 4;
    if (level != GGML_LOG_LEVEL_CONT) {
        current = level_of(level);
    }

    if (current == 1 && level != GGML_LOG_LEVEL_CONT) {
        g_ggml_error = text;
        while (!g_ggml_error.empty() && g_ggml_error.back() == '\n') {
            g_ggml_error.pop_back();
        }
    }
    if (current <= g_level) {
        fputs(text, stderr);
    }
}

void log_init() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_log_set(log_callback, nullptr); });
}

void log_set_level(int level) {
    log_init();
    g_level = level;
}

std::string take_ggml_error() {
    std::string res;
    res.swap(g_ggml_error);
    return res;
}

} // namespace ds
