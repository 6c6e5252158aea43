// ggml's log: filtered to stderr, its last error line kept for our own messages.

#pragma once

#include <string>

namespace ds {

// takes over ggml's log; does nothing the second time
void log_init();

// 0 quiet, 1 errors, 2 warnings, 3 info
void log_set_level(int level);

// the last error line that ggml logged on this thread; empty afterwards
std::string take_ggml_error();

} // namespace ds
