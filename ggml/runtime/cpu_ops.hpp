// Some of ggml's CPU ops run on one thread, or handle one value at a time: over a large vocabulary a drafter's block
// waits longer for them than for a layer. These are computed here instead, with the same result.

#pragma once

#include "ggml.h"

namespace ds {

// makes argmax, top_k, repetitions of single values and added rows of zeros in a graph ops of our own; for graphs that only
// the CPU computes
void replace_cpu_ops(ggml_context * ctx, ggml_cgraph * gf);

// the op of a node before it was replaced
ggml_op original_op(const ggml_tensor * node);

} // namespace ds
