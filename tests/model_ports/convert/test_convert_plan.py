"""Plans: strict both ways, exact shapes, layouts, tied heads, dtypes."""

import dataclasses
import json

import numpy as np
import pytest
from support.checkpoints import (
    BF16,
    llama_config,
    llama_shapes,
    random_tensors,
    tiny_llama,
    write_folder,
)

from model_ports.backbones.llama import PORT
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import plan_folder
from model_ports.convert.rules import Rule, to_param
from model_ports.errors import UserError
from model_ports.port import abstract_model


def refused(folder, *words, **kwargs):
    with pytest.raises(UserError) as caught:
        plan_folder(folder, **kwargs)
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message


@pytest.fixture
def parts():
    config = llama_config()
    return config, random_tensors(llama_shapes(config), seed=0)


def test_a_good_folder_fills_every_parameter_from_every_tensor(tmp_path):
    tensors = tiny_llama(tmp_path, shards=2)
    plan = plan_folder(tmp_path)
    _, abstract = abstract_model(PORT, plan.config)
    assert {p: t.shape for p, t in plan.targets.items()} == {
        p: leaf.shape for p, leaf in flatten(abstract).items()
    }
    used = [piece.info.name for target in plan.targets.values() for piece in target.pieces]
    assert sorted(used) == sorted(tensors)
    assert plan.nbytes == sum(t.nbytes for t in tensors.values())
    text = plan.describe()
    assert "decoder/layers/attn/q/kernel [3, 32, 4, 8] bfloat16" in text
    assert plan.summary()["source_tensors"] == len(tensors)
    json.dumps(plan.summary())


def test_values_are_those_of_the_rules(tmp_path):
    tensors = tiny_llama(tmp_path)
    plan = plan_folder(tmp_path)
    for target in plan.targets.values():
        values = target.read((slice(None),) * len(target.shape))
        assert values.dtype == target.dtype
        for piece in target.pieces:
            part = values[piece.lead]
            expected = to_param(tensors[piece.info.name], piece.rule.layout, piece.shape)
            assert np.array_equal(part, expected), target.path


def test_slices_of_parameters_equal_slices_of_the_whole(tmp_path):
    tiny_llama(tmp_path)
    rng = np.random.default_rng(0)
    for target in plan_folder(tmp_path).targets.values():
        whole = target.read((slice(None),) * len(target.shape))
        for _ in range(8):
            index = []
            for size in target.shape:
                first = int(rng.integers(size))
                index.append(slice(first, int(rng.integers(first + 1, size + 1))))
            assert np.array_equal(target.read(tuple(index)), whole[tuple(index)]), target.path


def test_missing_extra_and_misshapen_tensors_are_all_named(tmp_path, parts):
    config, tensors = parts
    del tensors["model.layers.1.mlp.up_proj.weight"]
    del tensors["model.norm.weight"]
    tensors["model.layers.2.self_attn.q_norm.weight"] = np.zeros(8, BF16)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((48, 32), BF16)
    write_folder(tmp_path, config, tensors)
    refused(
        tmp_path,
        "2 missing", "model.layers.1.mlp.up_proj.weight", "model.norm.weight",
        "1 unknown", "model.layers.2.self_attn.q_norm.weight",
        "1 tensors of the wrong shape", "model.layers.0.mlp.down_proj.weight", "[32, 48]",
        "Nothing was converted", "'llama'",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (16, 64)),
        ("model.layers.0.self_attn.q_proj.weight", (8, 128)),
        ("model.layers.0.self_attn.k_proj.weight", (32, 16)),
        ("model.layers.0.self_attn.o_proj.weight", (1024,)),
        ("model.layers.0.self_attn.q_proj.weight", (32, 32, 1)),
        ("model.embed_tokens.weight", (32, 61)),
        ("model.embed_tokens.weight", (61 * 32,)),
        ("model.embed_tokens.weight", (62, 32)),
        ("model.norm.weight", (1, 32)),
        ("model.norm.weight", ()),
        ("lm_head.weight", (61, 33)),
    ],
)
def test_any_other_shape_is_refused_even_with_the_same_size(tmp_path, parts, name, shape):
    config, tensors = parts
    tensors[name] = np.zeros(shape, BF16)
    write_folder(tmp_path, config, tensors)
    refused(tmp_path, name, "wrong shape", str(list(shape)))


def test_many_offenders_are_folded(tmp_path, parts):
    config, tensors = parts
    renamed = {f"wrapper.{name}": value for name, value in tensors.items()}
    write_folder(tmp_path, config, renamed)
    message = refused(tmp_path, f"{len(tensors)} missing", f"{len(tensors)} unknown")
    assert "wrapper.model.layers.0.mlp.up_proj.weight ... wrapper.model.layers.2" in message
    assert len(message) < 5000


def test_fewer_layers_than_the_config_says(tmp_path, parts):
    config, tensors = parts
    write_folder(tmp_path, config | {"num_hidden_layers": 4}, tensors)
    refused(tmp_path, "9 missing", "model.layers.3.input_layernorm.weight")
    write_folder(tmp_path, config | {"num_hidden_layers": 2}, tensors)
    refused(tmp_path, "9 unknown", "model.layers.2.input_layernorm.weight")


def test_known_buffers_have_no_effect_and_others_are_refused(tmp_path, parts):
    config, tensors = parts
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        tensors[name] = np.arange(4, dtype=np.float32)
    write_folder(tmp_path, config, tensors)
    plan = plan_folder(tmp_path)
    assert len(plan.skipped) == 3
    assert "no effect" in plan.describe()
    tensors["model.position_ids"] = np.arange(9)
    write_folder(tmp_path, config, tensors)
    refused(tmp_path, "1 unknown", "model.position_ids")


def test_tied_head_absent(tmp_path):
    tiny_llama(tmp_path, tie_word_embeddings=True)
    plan = plan_folder(tmp_path)
    assert "decoder/lm_head/kernel" not in plan.targets
    assert plan.copies == ()


def test_tied_head_present_and_equal(tmp_path, parts):
    config, tensors = parts
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    write_folder(tmp_path, config | {"tie_word_embeddings": True}, tensors, shards=2)
    assert plan_folder(tmp_path).copies == ("lm_head.weight",)


def test_tied_head_present_and_different(tmp_path, parts):
    config, tensors = parts
    tied = config | {"tie_word_embeddings": True}
    for change in ("value", "dtype", "shape"):
        head = tensors["model.embed_tokens.weight"].copy()
        if change == "value":
            head.view(np.uint16)[-1, -1] ^= 1
        elif change == "dtype":
            head = head.astype(np.float32)
        else:
            head = head[:-1]
        write_folder(tmp_path, tied, tensors | {"lm_head.weight": head})
        refused(tmp_path, "tie_word_embeddings", "lm_head.weight", "model.embed_tokens.weight")


def test_untied_head_missing_says_what_would_make_it_right(tmp_path, parts):
    config, tensors = parts
    del tensors["lm_head.weight"]
    write_folder(tmp_path, config, tensors)
    refused(tmp_path, "lm_head.weight", "tie_word_embeddings: true")


def test_the_file_may_decide_where_a_port_says_so(tmp_path, parts):
    config, tensors = parts

    def settle(cfg, names):
        decoder = dataclasses.replace(cfg.decoder, tied="lm_head.weight" not in names)
        return dataclasses.replace(cfg, decoder=decoder)

    port = dataclasses.replace(PORT, settle=settle)
    write_folder(tmp_path, config | {"tie_word_embeddings": True}, tensors)
    refused(tmp_path, "tie_word_embeddings")
    assert "decoder/lm_head/kernel" in plan_folder(tmp_path, port=port).targets


def test_dtypes_are_kept_one_by_one(tmp_path, parts):
    config, tensors = parts
    kinds = [BF16, np.dtype(np.float32), np.dtype(np.float16)]
    for i, name in enumerate(("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight")):
        tensors[name] = tensors[name].astype(kinds[i])
    write_folder(tmp_path, config, tensors)
    targets = plan_folder(tmp_path).targets
    paths = ("decoder/final_norm/scale", "decoder/lm_head/kernel", "decoder/embed/embedding")
    assert [targets[p].dtype for p in paths] == kinds


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [("float32", "bfloat16", "float32"), ("float16", "bfloat16", "float32"),
     ("float16", "float32", "float32"), ("float16", "float16", "float16")],
)  # fmt: skip
def test_layers_of_mixed_dtypes_keep_every_value(tmp_path, parts, first, second, kept):
    config, tensors = parts
    names = {"bfloat16": BF16}
    for layer, dtype in enumerate((first, second, second)):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        tensors[name] = tensors[name].astype(names.get(dtype, dtype))
    write_folder(tmp_path, config, tensors)
    target = plan_folder(tmp_path).targets["decoder/layers/mlp/up/kernel"]
    assert target.dtype.name == kept
    values = target.read((slice(None),) * 3)
    for layer in range(3):
        source = tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
        assert np.array_equal(values[layer].T.astype(source.dtype), source)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_], ids=str)
def test_integers_are_no_weights(tmp_path, parts, dtype):
    config, tensors = parts
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(dtype)
    write_folder(tmp_path, config, tensors)
    for request in (None, "float32"):
        refused(tmp_path, "model.norm.weight", "quantised", dtype=request)


def test_float64_needs_a_request(tmp_path, parts):
    config, tensors = parts
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)
    write_folder(tmp_path, config, tensors)
    refused(tmp_path, "model.norm.weight", "F64", "--dtype")
    plan = plan_folder(tmp_path, dtype="float32")
    assert {t.dtype.name for t in plan.targets.values()} == {"float32"}


def test_bad_requests(tmp_path, parts):
    config, tensors = parts
    write_folder(tmp_path, config, tensors)
    refused(tmp_path, "int8", "bfloat16", dtype="int8")
    refused(tmp_path / "model.safetensors", "is a file")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "config.json", "JSON")
    (tmp_path / "config.json").write_text("[]")
    refused(tmp_path, "config.json")
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "config.json", "missing")


def test_unknown_attribute_quantisation_and_model_type(tmp_path, parts):
    config, tensors = parts
    write_folder(tmp_path, config | {"sliding_magic": 3}, tensors)
    refused(tmp_path, "sliding_magic")
    write_folder(tmp_path, config | {"quantization_config": {"bits": 4}}, tensors)
    refused(tmp_path, "quantization_config")
    write_folder(tmp_path, config | {"model_type": "mystery"}, tensors)
    refused(tmp_path, "mystery", "llama")


def test_the_closest_layout_is_named(tmp_path, parts):
    config, tensors = parts
    own = PORT.layouts(PORT.read_config(config))["llama"]
    other = [dataclasses.replace(rule, key=f"text.{rule.key}") for rule in own]
    port = dataclasses.replace(PORT, layouts=lambda _: {"text": other, "plain": own})
    prefixed = {f"text.{name}": value for name, value in tensors.items()}
    write_folder(tmp_path, config, prefixed)
    assert plan_folder(tmp_path, port=port).layout == "text"
    write_folder(tmp_path, config, tensors)
    assert plan_folder(tmp_path, port=port).layout == "plain"
    del prefixed["text.model.norm.weight"]
    write_folder(tmp_path, config, prefixed)
    refused(tmp_path, "text, plain", "is 'text'", "text.model.norm.weight", port=port)


def test_a_port_with_a_wrong_table_is_refused(tmp_path, parts):
    config, tensors = parts
    write_folder(tmp_path, config, tensors)
    own = PORT.layouts(PORT.read_config(config))["llama"]

    def table(rules):
        return dataclasses.replace(PORT, layouts=lambda _: {"llama": rules})

    refused(tmp_path, "decoder/embed/embedding", "filled by []", port=table(own[1:]))
    refused(tmp_path, "decoder/embed/embedding", "not by one", port=table([own[0], *own]))
    ghost = Rule("ghost.weight", "decoder/ghost", "vector")
    refused(tmp_path, "decoder/ghost", "lacks", port=table([*own, ghost]))
    half = [dataclasses.replace(own[0], rows=(1, 2)), *own[1:]]
    refused(tmp_path, "row blocks", port=table(half))


def test_row_blocks_of_a_fused_tensor(tmp_path, parts):
    """A fused gate_up matrix, as some published files have it."""
    config, tensors = parts
    own = PORT.layouts(PORT.read_config(config))["llama"]
    rules = []
    for rule in own:
        for block, part in enumerate(("gate", "up")):
            if f"mlp.{part}_proj" in rule.key:
                key = rule.key.replace(f"{part}_proj", "gate_up_proj")
                rules.append(dataclasses.replace(rule, key=key, rows=(block, 2)))
        if "gate_proj" not in rule.key and "up_proj" not in rule.key:
            rules.append(rule)
    port = dataclasses.replace(PORT, layouts=lambda _: {"fused": rules})
    fused = dict(tensors)
    for layer in range(3):
        at = f"model.layers.{layer}.mlp."
        pair = [fused.pop(f"{at}{p}_proj.weight") for p in ("gate", "up")]
        fused[f"{at}gate_up_proj.weight"] = np.concatenate(pair)
    write_folder(tmp_path / "fused", config, fused)
    write_folder(tmp_path / "plain", config, tensors)
    a = plan_folder(tmp_path / "fused", port=port).targets
    b = plan_folder(tmp_path / "plain").targets
    for path, target in b.items():
        index = (slice(None),) * len(target.shape)
        assert np.array_equal(a[path].read(index), target.read(index)), path
    name = "model.layers.0.mlp.gate_up_proj.weight"
    fused[name] = fused[name][:-1]
    write_folder(tmp_path / "fused", config, fused)
    refused(tmp_path / "fused", name, "[95, 32]", "[96, 32]", port=port)
