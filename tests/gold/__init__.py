"""Replay of recorded cases through the public API: ``python -m tests.gold DIR...``.

A case is a folder with a ``manifest.json`` (recorded by llama.cpp, transformers or a float64 reference) or a
``reference.json`` (a trained model, judged by PyTorch). Every recorded array, token list and loop is computed again
and compared, one line each, with the figure and the tolerance; a case that needs an architecture which does not exist
here fails. Exit status: 0 all passed, 1 a comparison failed, 2 a folder could not be read.

The tolerances
--------------
An output is always compared with what the *same* configuration (type of the cache, flash attention) recorded.

* **Weights and cache in f32**: 3e-5 absolute (a float64 model differs by less, says the recording's README), more only
  where the manifest shows that the reference itself differs by more when it sums in another order (one cache for all
  sequences, chunks, token by token, threads). With GELU 1e-3: ggml's is a table of half-precision values. DeepSeek-V4
  5e-5, the difference between llama.cpp and transformers.
* **Other caches, flash attention**: the normalised squared error that the manifest measured between this configuration
  and f32, and twice the largest difference, because single values may be rounded either way in both runs. A run that is
  no farther from the record than the recorded configurations are from one another is legitimate; what is really left is
  far less, so read the figure.
* **Weights in f16, bf16 or quantised types**: ggml rounds activations as well, so a difference in the last bit may
  become a whole rounding step. The limit is what the manifest measured between configurations that round less than
  the weights do (f16 caches, flash attention). Where it measured nothing: 0.01, 0.06 and 0.5, as its README says.
* **Decisions** (arg max, drafted tokens, candidates, rounds of a loop): equal. Another choice passes only where the two
  alternatives lie within the limit of each other; the line says so. In a Markov chain the rows behind another
  choice, and in a lattice the scores behind another candidate set, cannot be compared and are left out. A loop that
  takes another draft at such a tie is run again along the recorded path, and every round is judged there.
* **DeepSeek-V4 in anything but f32**: quantiles of the error of a row, as the manifest has them: one other expert moves
  a whole row.
* **Cases of transformers and the float64 reference**: normalised squared error 1e-9 and equal arg max in f32, 1e-5 with
  f16 caches; integers equal.
* **Trained models**: against PyTorch in f32, so the limit depends on the type of the weights in the GGUF alone.

Infinities must stand in the same places, and NaN never passes.
"""
