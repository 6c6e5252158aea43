"""Make a GGUF for ``my_drafter.py``: a copy of a DFlash file with one weight for each target layer.

    python examples/add_gate.py DFLASH.gguf OUT.gguf [WEIGHT ...]

Without weights they are all 1, so that the copy computes what the original does. Training would give others.
"""

import sys

import gguf
import numpy as np


def add_gate(source: str, out: str, weights: list[float]) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    n_layers = len(reader.get_field(f"{architecture}.target_layers").contents())
    gate = np.array(weights or [1.0] * n_layers, np.float32)
    if len(gate) != n_layers:
        sys.exit(f"{source} reads {n_layers} target layers, {len(gate)} weights were given")

    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("feature_gate.weight", gate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    add_gate(sys.argv[1], sys.argv[2], [float(w) for w in sys.argv[3:]])
