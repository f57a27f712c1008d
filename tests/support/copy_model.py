"""A hand-made text model that copies, so that where a head looks is known in advance.

Words come in chains (a0 a1 a2, b0 b1 b2, ...). At every token, head COPY attends to the key
that holds the next word of the chain and copies it; after the last word of a chain that is
the end token, which every prompt starts with. All other heads attend evenly and write nothing.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.block import DecoderConfig
from model_ports.decoder import Decoder
from model_ports.nn.rope import Rope
from model_ports.port import Model, Port
from model_ports.sharding import param_shardings
from model_ports.text import TextProcessor
from model_ports.vlm import VLM
from vrh_jax.study.models import ModelInfo

CHAINS, LENGTH = 7, 3
WORDS = [f"{chr(97 + c)}{i}" for c in range(CHAINS) for i in range(LENGTH)]
VOCAB = ["end", "pad", *WORDS]
COPY = (0, 1)
LAYERS, HEADS = 2, 8
HEAD_DIM = 32


def following(token: int) -> int:
    """The token that the copying head looks for."""
    word = VOCAB[token]
    if word not in WORDS or word.endswith(str(LENGTH - 1)):
        return 0
    return token + 1


def config(layers: int = LAYERS) -> DecoderConfig:
    # With this theta, all frequencies but the first are so slow that position does not matter.
    return DecoderConfig(
        vocab=len(VOCAB), layers=layers, dim=HEAD_DIM, heads=HEADS, kv_heads=2,
        head_dim=HEAD_DIM, mlp_dim=4, norm_eps=1e-6, rope=Rope(theta=1e30), tied=True,
    )  # fmt: skip


def _params(decoder: Decoder, copy: tuple[int, int]) -> dict[str, Any]:
    params = nnx.to_pure_dict(nnx.state(decoder))
    size, half = len(VOCAB), HEAD_DIM // 2
    # Dimensions that the one fast frequency rotates are left free.
    dims = [d for d in range(HEAD_DIM) if d not in (0, half)][:size]
    embedding = np.zeros((size, HEAD_DIM), np.float32)
    embedding[np.arange(size), dims] = 1.0
    params["embed"]["embedding"] = jnp.asarray(embedding)
    attn = params["layers"]["attn"]
    zero = {name: np.zeros(attn[name]["kernel"].shape, np.float32) for name in "qkvo"}
    layer, head = copy
    for token in range(size):
        zero["q"][layer, dims[token], head, dims[following(token)]] = 4.0
        zero["o"][layer, head, dims[token], dims[token]] = 2.0
    for name in "kv":
        zero[name][:, np.arange(HEAD_DIM), :, np.arange(HEAD_DIM)] = 1.0
    for name, value in zero.items():
        attn[name]["kernel"] = jnp.asarray(value)
    params["layers"]["mlp"]["down"]["kernel"] *= 0
    return params


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCAB)}, unk_token="pad"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="end", pad_token="pad")


def _build(settings: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> VLM:
    return VLM(Decoder(settings, rngs=rngs, dtype=dtype))


PORT = Port(
    family="llama", model_types=("copy",), read_config=None, build=_build, layouts=None,
    processor=None, box=None, names={},
)  # fmt: skip


class _Config:
    def __init__(self, decoder: DecoderConfig):
        self.decoder = decoder


def copy_model(name: str = "copy", copy: tuple[int, int] = COPY) -> Model:
    decoder = Decoder(config(), rngs=nnx.Rngs(0))
    vlm = VLM(decoder)
    graphdef, _ = nnx.split(vlm)
    return Model(
        name=name, port=PORT, config=_Config(config()), graphdef=graphdef,
        params={"decoder": _params(decoder, copy)},
        processor=TextProcessor(_tokenizer(), (0,)), fingerprint=f"copy-{copy}",
    )  # fmt: skip


class CopySource:
    """Models of a study: sources ``copy`` and ``copy:LAYER:HEAD``."""

    def info(self, settings: Any) -> ModelInfo:
        return ModelInfo(PORT, config())

    def load(self, settings: Any, mesh: Any) -> Model:
        parts = settings.source.split(":")[1:]
        model = copy_model(settings.name, tuple(map(int, parts)) if parts else COPY)
        if mesh is None:
            return model
        placed = jax.device_put(model.params, param_shardings(model.params, mesh))
        return dataclasses.replace(model, params=placed)


def write_samples(path: Path, count: int, seed: int = 0) -> None:
    """Needle samples as json lines: other words around two neighbours of a chain, then its
    first word; the answer is the two."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(count):
        chain = int(rng.integers(CHAINS))
        start, first, last = (f"{chr(97 + chain)}{j}" for j in range(LENGTH))
        fill = [w for w in WORDS if w[0] != start[0]]
        words = [str(w) for w in rng.choice(fill, int(rng.integers(3, 12)), replace=False)]
        words.insert(int(rng.integers(len(words) + 1)), f"{first} {last}")
        lines.append(
            {
                "id": f"s{i:03d}", "image_id": f"i{i // 2:03d}", "kind": "needle",
                "text": " ".join(["end", *words, start]), "needle": f"{first} {last}",
                "answer": f"{first} {last}",
            }
        )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
