"""InternLM2 / InternLM2.5 language backbone: Llama's computation under names of its own.

Files fuse queries, keys and values in one ``wqkv`` whose rows are grouped per key-value head:
the query heads of the group, then its key, then its value. Query heads keep their numbers
(head = group * heads per group + slot), and the rotation is Llama's. Reference: the
``modeling_internlm2`` of the published repositories; transformers has no class of its own, and
its converted checkpoints are Llamas.
"""

from model_ports.backbones.llama_like import outer_rules, read_llama_like
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader
from model_ports.convert.rules import Rule


def read_internlm2(reader: ConfigReader, *, tied: bool | None = None) -> DecoderConfig:
    """Decoder settings from an internlm2 config; refuses biases."""
    reader.expect("bias", False)
    # Splits matrices to reproduce a training run's order of sums.
    reader.expect("pretraining_tp", 1)
    return read_llama_like(reader, qkv_bias=False, tied=tied)


def internlm2_rules(cfg: DecoderConfig, *, model: str, head: str) -> list[Rule]:
    """Key table of the decoder, arguments as in ``outer_rules``."""
    layer, ours = f"{model}layers.{{l}}.", "decoder/layers/"
    queries = cfg.heads // cfg.kv_heads
    rules = [
        *outer_rules(cfg, model=model, head=head, embed="tok_embeddings", attention="attention"),
        Rule(f"{layer}attention_norm.weight", f"{ours}pre_attn_norm/scale", "vector"),
        Rule(f"{layer}ffn_norm.weight", f"{ours}pre_mlp_norm/scale", "vector"),
        Rule(f"{layer}attention.wo.weight", f"{ours}attn/o/kernel", "linear"),
    ]
    for part, first, span in (("q", 0, queries), ("k", queries, 1), ("v", queries + 1, 1)):
        rules.append(
            Rule(
                f"{layer}attention.wqkv.weight",
                f"{ours}attn/{part}/kernel",
                "linear",
                rows=(first, queries + 2),
                span=span,
                groups=cfg.kv_heads,
            )
        )
    return rules + [
        Rule(f"{layer}feed_forward.{name}.weight", f"{ours}mlp/{part}/kernel", "linear")
        for name, part in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    ]
