// Errors of the runtime: thrown inside, one line at the C boundary.

#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace ds {

__attribute__((format(printf, 1, 2)))
std::string format(const char * fmt, ...);

// throws std::runtime_error with the formatted line
[[noreturn]] __attribute__((format(printf, 1, 2)))
void fail(const char * fmt, ...);

// the same, followed by what ggml last said on this thread
[[noreturn]] __attribute__((format(printf, 1, 2)))
void fail_ggml(const char * fmt, ...);

// "a, b, c"; "none" when there is nothing to list
template <typename Names>
std::string join(const Names & names) {
    std::string res;
    for (const auto & name : names) {
        res += (res.empty() ? "" : ", ") + std::string(name);
    }
    return res.empty() ? "none" : res;
}

void         set_last_error(const char * line) noexcept;
const char * last_error() noexcept;

// Runs f and returns its result; an exception becomes the last error and the result `failed`.
template <typename F, typename R>
R guarded(R failed, F && f) noexcept {
    try {
        return std::forward<F>(f)();
    } catch (const std::bad_alloc &) {
        set_last_error("out of memory");
    } catch (const std::exception & e) {
        set_last_error(e.what());
    } catch (...) {
        set_last_error("an exception of unknown type was thrown");
    }
    return failed;
}

} // namespace ds
