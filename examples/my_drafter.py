"""A drafter of one's own: DFlash with a learned weight for each target layer that it reads.

DFlash concatenates the hidden states of several target layers and fuses them with one matrix. Here every layer's part
is first multiplied by a number of its own. Everything else is inherited.
"""

from draftsmith.dsl import Value, arch, boolean, feeds, graph, n_tokens, nn, ops, tensor
from draftsmith.graphs import dflash


class hp(dflash.hp):
    gate_sigmoid = boolean("{arch}.feature_gate_sigmoid", False)


@arch("dflash", variant="gated_dflash")
class GatedDFlash(dflash.DFlash):
    """DFlash whose target layers are weighted before they are fused."""

    hparams = hp
    requires = ("feature_gate.weight",)

    feature_gate = tensor("feature_gate.weight", hp.target_layers.length)

    def weighted(self, features: Value) -> Value:
        """Each target layer's part [n_embd] of a feature row times that layer's gate."""
        gate = ops.sigmoid(self.feature_gate) if hp.gate_sigmoid else self.feature_gate
        parts = ops.reshape(features, hp.n_embd, hp.target_layers.length, n_tokens)
        parts = ops.mul(parts, ops.reshape(gate, 1, hp.target_layers.length))
        return ops.reshape(parts, hp.target_layers.length * hp.n_embd, n_tokens)

    @graph
    def inject(self, features: Value = feeds.features(hp.target_layers.length * hp.n_embd)) -> dict[str, Value]:
        """As DFlash, from weighted features."""
        pos = self.positions()
        fused = self.norm(nn.linear(self.fc, self.weighted(features)), self.enc_output_norm)
        for layer in self.layers:
            k, v = self.project_kv(layer, fused, pos)
            nn.write_kv(layer, k, v, layer.kv)
        return {"fused": fused}
