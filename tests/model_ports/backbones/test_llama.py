"""The Llama port against transformers' eager LlamaForCausalLM in float32."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import (
    assert_close,
    load_params,
    save_tokenizer,
    saved_tensors,
    widen,
    zeroed_heads,
)
from transformers import LlamaConfig, LlamaForCausalLM

from model_ports.backbones.llama import PORT
from model_ports.decoder import Inputs
from model_ports.errors import UserError
from model_ports.images.token_grid import TokenGrid
from model_ports.nn.attention import Tap
from model_ports.port import abstract_model
from model_ports.prompt import Prompt, collate, offset
from vrh_jax.engine.generate import generate

LENGTHS = (13, 7, 20)
NEW = 12


def config(**changes: Any) -> LlamaConfig:
    base = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "attn_implementation": "eager",
    }
    return LlamaConfig(**base | changes)


@dataclass
class Pair:
    torch: LlamaForCausalLM
    graphdef: Any
    params: Any
    cfg: Any
    prompts: list[Prompt]

    @property
    def projections(self) -> list[torch.nn.Module]:
        return [layer.self_attn.o_proj for layer in self.torch.model.layers]

    def merged(self) -> Any:
        return nnx.merge(self.graphdef, self.params)


def text_prompt(tokens: np.ndarray) -> Prompt:
    n = len(tokens)
    return Prompt(
        text="",
        tokens=tokens.astype(np.int32),
        positions=np.arange(n, dtype=np.int32)[None],
        visual_index=np.full(n, -1, np.int32),
        grid=TokenGrid.empty(),
        images={},
    )


def make_pair(folder, seed: int = 0, **changes: Any) -> Pair:
    hf = config(**changes)
    reference = widen(LlamaForCausalLM(hf), seed)
    cfg = PORT.read_config(hf.to_dict())
    graphdef, abstract = abstract_model(PORT, cfg)
    params = load_params(abstract, PORT.layouts(cfg)["llama"], saved_tensors(reference, folder))
    rng = np.random.default_rng(seed)
    prompts = [text_prompt(rng.integers(0, hf.vocab_size, n)) for n in LENGTHS]
    return Pair(reference, graphdef, jax.tree.map(jnp.asarray, params), cfg.decoder, prompts)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def pair(request, tmp_path_factory) -> Pair:
    head_dim = {"head_dim": 12} if request.param else {}
    return make_pair(
        tmp_path_factory.mktemp("llama"), 5, tie_word_embeddings=request.param, **head_dim
    )


def run_torch(pair: Pair, tokens: np.ndarray) -> Any:
    with torch.no_grad():
        return pair.torch(torch.tensor(tokens[None].astype(np.int64)), output_attentions=True)


def run_jax(pair: Pair, side: str, **kwargs: Any) -> tuple[Any, Any, Any]:
    batch = collate(pair.prompts, side=side)
    model = pair.merged()
    hidden, _, tapped = model.decoder(model.embed(batch), **kwargs)
    return batch, model.decoder.logits(hidden), tapped


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_of_a_padded_batch(pair: Pair, side: str, masked: bool) -> None:
    dropped = [(0, 1), (1, 5), (2, 0), (2, 3)] if masked else []
    mask = np.ones((pair.cfg.layers, pair.cfg.heads), np.float32)
    for layer, head in dropped:
        mask[layer, head] = 0
    batch, logits, _ = run_jax(pair, side, head_mask=jnp.asarray(mask))
    total = batch.tokens.shape[1]
    with zeroed_heads(pair.projections, dropped, pair.cfg.head_dim):
        for row, prompt in enumerate(pair.prompts):
            first = offset(len(prompt), total, side)
            ours = logits[row, first : first + len(prompt)]
            assert_close(ours, run_torch(pair, prompt.tokens).logits[0], 1e-4, "logits")


def test_a_mask_changes_the_reference(pair: Pair) -> None:
    plain = run_torch(pair, pair.prompts[0].tokens).logits
    with zeroed_heads(pair.projections, [(1, 5)], pair.cfg.head_dim):
        masked = run_torch(pair, pair.prompts[0].tokens).logits
    assert (plain - masked).abs().max() > 1e-2 * plain.abs().max()


@pytest.mark.parametrize("side", ["left", "right"])
def test_taps_equal_eager_attentions(pair: Pair, side: str) -> None:
    total = 32
    rng = np.random.default_rng(1)
    rows = np.zeros((len(LENGTHS), 2), np.int32)
    sets = np.zeros((len(LENGTHS), 1, total), np.float32)
    keys = []
    for row, n in enumerate(LENGTHS):
        first = offset(n, total, side)
        rows[row] = first + np.array([n - 1, n // 2])
        chosen = rng.choice(n // 2, 2, replace=False)
        keys.append(chosen)
        sets[row, 0, first + chosen] = 1
    batch = collate(pair.prompts, side=side, length=total)
    model = pair.merged()
    tap = Tap(rows=jnp.asarray(rows), sets=jnp.asarray(sets))
    _, _, tapped = model.decoder(model.embed(batch), tap=tap)
    for row, prompt in enumerate(pair.prompts):
        n = len(prompt)
        maps = torch.stack(run_torch(pair, prompt.tokens).attentions)[:, 0].numpy()
        expected = maps[:, :, [n - 1, n // 2]]
        mass = expected[..., keys[row]].sum(-1)
        assert_close(tapped.mass[:, row, :, :, 0], mass, 1e-5, "region mass")
        top = expected.argmax(-1) + offset(n, total, side)
        np.testing.assert_array_equal(np.asarray(tapped.top[:, row]), top)
        np.testing.assert_array_equal(np.asarray(tapped.hit[:, row, :, :, 0]), sets[row, 0][top])


def test_parts(pair: Pair) -> None:
    """One attention and one MLP of a middle layer, at the tolerance of parts."""
    model = pair.merged()
    graphdef, stacked = nnx.split(model.decoder.layers)
    ours = nnx.merge(graphdef, jax.tree.map(lambda p: p[1], stacked))
    theirs = pair.torch.model.layers[1]
    x = np.random.default_rng(2).normal(size=(2, 9, pair.cfg.dim)).astype(np.float32)
    with torch.no_grad():
        mlp = theirs.mlp(torch.tensor(x))
        norm = theirs.input_layernorm(torch.tensor(x))
    assert_close(ours.mlp(jnp.asarray(x)), mlp, 1e-5, "mlp")
    assert_close(ours.pre_attn_norm(jnp.asarray(x)), norm, 1e-5, "norm")


@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_tokens(pair: Pair, side: str) -> None:
    batch = collate(pair.prompts, side=side)
    out = generate(pair.graphdef, pair.params, batch, max_new=NEW, eos_ids=(-5,))
    for row, prompt in enumerate(pair.prompts):
        tokens = list(prompt.tokens)
        for _ in range(NEW):
            tokens.append(int(run_torch(pair, np.array(tokens)).logits[0, -1].argmax()))
        assert list(np.asarray(out.tokens[row])) == tokens[len(prompt) :]


def test_cached_decode_equals_forward(pair: Pair) -> None:
    model, prompt = pair.merged(), pair.prompts[0]
    batch = collate([prompt], multiple=1)
    n = len(prompt)
    full, _, _ = model.decoder(model.embed(batch))
    cache = model.decoder.empty_cache(1, n)
    for at in range(n):
        x = model.decoder.embed(batch.tokens[:, at : at + 1])
        token = Inputs(x, batch.positions[:, :, at : at + 1], batch.valid[:, at : at + 1])
        step, cache, _ = model.decoder(token, cache=cache)
        assert_close(step[:, 0], full[:, at], 1e-5, f"hidden at {at}")


def test_dynamic_rope_beyond_the_trained_length(tmp_path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    pair = make_pair(tmp_path, 3, max_position_embeddings=8, rope_parameters=rope, rope_theta=None)
    prompt = pair.prompts[2]
    batch, logits, _ = run_jax(pair, "right")
    assert len(prompt) == batch.positions.max() + 1 > 8
    assert_close(logits[2, : len(prompt)], run_torch(pair, prompt.tokens).logits[0], 1e-4)


# A published config.json (SmolLM2-135M-Instruct), and what transformers 5 writes.
PUBLISHED = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}


def test_reads_published_and_transformers_5_configs() -> None:
    read = PORT.read_config(PUBLISHED).decoder
    shape = (read.layers, read.heads, read.kv_heads, read.head_dim, read.dim, read.mlp_dim)
    assert shape == (30, 9, 3, 64, 576, 1536)
    assert (read.rope.theta, read.norm_eps, read.tied) == (1e5, 1e-5, True)
    kept = {k: v for k, v in PUBLISHED.items() if k not in ("rope_scaling", "rope_theta")}
    five = LlamaConfig(**kept, rope_parameters={"rope_theta": 1e5, "rope_type": "default"})
    five = {k: v for k, v in five.to_dict().items() if k != "transformers.js_config"}
    assert PORT.read_config(five).decoder == read


def test_llama_2_configs_name_no_theta() -> None:
    raw = {k: v for k, v in PUBLISHED.items() if k != "rope_theta"}
    assert PORT.read_config(raw).decoder.rope.theta == 10000.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3|factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32}}, "yarn|beta"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 4}, "key-value heads"),
        ({"hidden_size": "576"}, "hidden_size"),
    ],
)
def test_refuses_what_would_change_the_numbers(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        PORT.read_config({**PUBLISHED, **change})


def test_missing_attribute_is_named() -> None:
    raw = {k: v for k, v in PUBLISHED.items() if k != "num_hidden_layers"}
    with pytest.raises(UserError, match="num_hidden_layers"):
        PORT.read_config(raw)


def test_processor_is_the_ports(tmp_path) -> None:
    save_tokenizer(tmp_path, ["<eos>", "<pad>"], "", eos="<eos>", pad="<pad>")
    cfg = PORT.read_config({**PUBLISHED, "vocab_size": 400})
    prompt = PORT.processor(tmp_path, cfg).prepare("Locate the red square")
    assert prompt.positions.shape == (1, len(prompt))
    assert (prompt.positions[0] == np.arange(len(prompt))).all()
