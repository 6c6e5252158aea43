// ggml's argmax runs on one thread and compares one value at a time: over a large vocabulary, a drafter's block waits
// longer for it than for a layer. On the CPU its nodes are computed here instead.

#pragma once

#include "ggml.h"

namespace ds {

// makes every argmax of a graph an op of our own, with the same result; for graphs that only the CPU computes
void replace_argmax(ggml_context * ctx, ggml_cgraph * gf);

// whether a node was an argmax
bool is_replaced_argmax(const ggml_tensor * node);

} // namespace ds
