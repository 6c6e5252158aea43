#include "error.hpp"

#include "log.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <new>

namespace ds {

static std::string vformat(const char * fmt, va_list args) {
    va_list copy;
    va_copy(copy, args);
    const int n = vsnprintf(nullptr, 0, fmt, copy);
    va_end(copy);

    std::string res(n > 0 ? n : 0, '\0');
    vsnprintf(&res[0], res.size() + 1, fmt, args);
    return res;
}

std::string format(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string res = vformat(fmt, args);
    va_end(args);
    return res;
}

void fail(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string line = vformat(fmt, args);
    va_end(args);
    throw std::runtime_error(line);
}

void fail_ggml(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    std::string line = vformat(fmt, args);
    va_end(args);

    const std::string said = take_ggml_error();
    if (!said.empty()) {
        line += " (ggml: " + said + ")";
    }
    throw std::runtime_error(line);
}

static thread_local std::string g_last_error;

void set_last_error(const char * line) noexcept {
    try {
        g_last_error = line;
        std::replace(g_last_error.begin(), g_last_error.end(), '\n', ' ');
    } catch (const std::bad_alloc &) {
        g_last_error.clear();
    }
}

const char * last_error() noexcept {
    return g_last_error.c_str();
}

} // namespace ds
