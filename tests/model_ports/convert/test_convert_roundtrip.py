"""convert -> verify -> export: bit-identical over random configs, dtypes, splits and layouts."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from support.checkpoints import (
    BF16,
    folder_bytes,
    llama_config,
    llama_shapes,
    random_tensors,
    tiny_llama,
    write_folder,
)

from model_ports.backbones.llama import PORT
from model_ports.convert.export import export_folder, export_params, parse_size
from model_ports.convert.load import load_model
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import verify_folder
from model_ports.errors import UserError

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def tensors_in(folder):
    """All tensors of a folder, read by the safetensors library."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                assert name not in found
                found[name] = file.get_tensor(name)
    return found


def assert_identical(actual, expected):
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert actual[name].shape == value.shape, name
        assert actual[name].tobytes() == value.tobytes(), name


def verified(converted, **kwargs):
    result = verify_folder(converted, logits=False, **kwargs)
    assert result["ok"], result["mismatches"]
    return result


def fused(config):
    """A port whose files have gate_up matrices, all names prefixed, beside the plain layout."""
    own = PORT.layouts(PORT.read_config(config))["llama"]
    rules = []
    for rule in own:
        key, rows = f"text.{rule.key}", None
        for block, part in enumerate(("gate", "up")):
            if f"mlp.{part}_proj" in rule.key:
                key, rows = key.replace(f"{part}_proj", "gate_up_proj"), (block, 2)
        rules.append(dataclasses.replace(rule, key=key, rows=rows))
    return dataclasses.replace(PORT, layouts=lambda _: {"fused": rules, "llama": own})


def fuse(tensors, layers):
    out = {f"text.{name}": value for name, value in tensors.items()}
    for layer in range(layers):
        at = f"text.model.layers.{layer}.mlp."
        pair = [out.pop(f"{at}{part}_proj.weight") for part in ("gate", "up")]
        out[f"{at}gate_up_proj.weight"] = np.concatenate(pair)
    return out


@st.composite
def checkpoints(draw):
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    kv = draw(st.sampled_from([k for k in (1, 2, 3, 4, 6) if heads % k == 0]))
    config = llama_config(
        vocab_size=draw(st.integers(3, 70)),
        hidden_size=draw(st.integers(1, 20)),
        head_dim=2 * draw(st.integers(1, 5)),
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=draw(st.integers(1, 30)),
        tie_word_embeddings=draw(st.booleans()),
    )
    kinds = draw(st.lists(st.sampled_from([BF16, F16, F32]), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    tensors = random_tensors(
        llama_shapes(config), int(rng.integers(2**31)), lambda _: kinds[rng.integers(len(kinds))]
    )
    # Bits that a detour through arithmetic would lose: NaN payloads, -0, denormals.
    for value in tensors.values():
        bits = value.reshape(-1).view(f"u{value.dtype.itemsize}")
        bits[: min(2, bits.size)] = [1, 1 << (8 * value.dtype.itemsize - 1)][: bits.size]
    if config["tie_word_embeddings"] and draw(st.booleans()):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    return {
        "config": config,
        "tensors": tensors,
        "files": draw(st.integers(1, 5)),
        "shards": draw(st.sampled_from([1, 2, 3])),
        "max_shard": draw(st.sampled_from([1, 300, 4000, 10**9])),
        "fused": draw(st.booleans()),
        "chunks": draw(st.booleans()),
    }


@given(case=checkpoints())
@settings(max_examples=15, deadline=None)
def test_round_trip_is_bit_identical(tmp_path_factory, case):
    base = tmp_path_factory.mktemp("trip")
    config, tensors, port = case["config"], case["tensors"], PORT
    if case["fused"]:
        port = fused(config)
        same = all(
            tensors[f"model.layers.{i}.mlp.gate_proj.weight"].dtype
            == tensors[f"model.layers.{i}.mlp.up_proj.weight"].dtype
            for i in range(config["num_hidden_layers"])
        )
        tensors = fuse(tensors, config["num_hidden_layers"]) if same else tensors
    write_folder(base / "source", config, tensors, shards=case["files"], tokenizer=False)
    with pytest.MonkeyPatch.context() as patch:
        if case["chunks"]:
            patch.setattr("model_ports.convert.store._SMALL", 0)
            patch.setattr("model_ports.convert.store._MIN_CHUNK", 0)
            patch.setattr("model_ports.convert.store._MAX_CHUNK", 900)
            patch.setattr("model_ports.convert.filetensors._BLOCK", 200)
        plan = plan_folder(base / "source", port=port)
        save(plan, base / "out", shards=case["shards"])
        assert verified(base / "out", port=port)["against"] == "source"
        report = export_folder(base / "out", base / "back", max_shard=case["max_shard"], port=port)
        shutil.move(base / "source", base / "away")
        assert verified(base / "out", port=port)["against"] == "checksums"
    assert_identical(tensors_in(base / "back"), tensors)
    assert report["tensors"] == len(tensors)
    assert (base / "back/config.json").read_bytes() == (base / "away/config.json").read_bytes()
    for path in (base / "back").glob("*.safetensors"):
        found = safe_open(path, "np").keys()
        size = sum(tensors[name].nbytes for name in found)
        assert size <= case["max_shard"] or len(found) == 1
    # What was exported converts again, to the same.
    again = plan_folder(base / "back", port=port)
    assert again.layout == plan.layout
    shutil.rmtree(base)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_cast_is_verified_and_exported_as_cast(tmp_path, dtype):
    tensors = tiny_llama(tmp_path / "source", dtype=F32, shards=2, torch_dtype="float32")
    save(plan_folder(tmp_path / "source", dtype=dtype), tmp_path / "out")
    verified(tmp_path / "out")
    kind = {"float32": F32, "bfloat16": BF16, "float16": F16}[dtype]
    export_folder(tmp_path / "out", tmp_path / "back")
    assert_identical(
        tensors_in(tmp_path / "back"), {name: t.astype(kind) for name, t in tensors.items()}
    )
    assert json.loads((tmp_path / "back/config.json").read_text())["torch_dtype"] == dtype
    shutil.move(tmp_path / "source", tmp_path / "away")
    assert verified(tmp_path / "out")["against"] == "checksums"


def test_layouts_lead_to_the_same_parameters(tmp_path):
    """Fused source -> export in the plain layout -> convert: equal, and back again."""
    config = llama_config()
    tensors = random_tensors(llama_shapes(config), 0)
    port = fused(config)
    write_folder(tmp_path / "a", config, fuse(tensors, 3))
    save(plan_folder(tmp_path / "a", port=port), tmp_path / "ca")
    report = export_folder(tmp_path / "ca", tmp_path / "b", layout="llama", port=port)
    assert report["layout"] == "llama"
    assert_identical(tensors_in(tmp_path / "b"), tensors)
    save(plan_folder(tmp_path / "b", port=port), tmp_path / "cb")
    export_folder(tmp_path / "cb", tmp_path / "c", layout="fused", port=port)
    assert_identical(tensors_in(tmp_path / "c"), fuse(tensors, 3))
    with pytest.raises(UserError, match=r"no layout 'x'.*fused, llama"):
        export_folder(tmp_path / "cb", tmp_path / "d", layout="x", port=port)
    # A conversion may be verified against the other layout, too.
    verified(tmp_path / "ca", source=tmp_path / "b", port=port)


def test_export_has_all_files_and_the_same_fingerprint(tmp_path):
    tiny_llama(tmp_path / "source")
    (tmp_path / "source/generation_config.json").write_text('{"eos_token_id": 1}')
    (tmp_path / "source/chat_template.jinja").write_text("{{ messages[0].content }}")
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    export_folder(tmp_path / "out", tmp_path / "back")
    a, b = folder_bytes(tmp_path / "source"), folder_bytes(tmp_path / "back")
    assert set(a) == set(b)
    del a["model.safetensors"], b["model.safetensors"]
    assert a == b
    found = {load_model(tmp_path / name).fingerprint for name in ("source", "out", "back")}
    assert len(found) == 1


def test_buffers_without_effect_are_reported(tmp_path):
    config = llama_config()
    tensors = random_tensors(llama_shapes(config), 0)
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    extra = {name: np.arange(4, dtype=np.float32)}
    write_folder(tmp_path / "source", config, tensors | extra)
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    verified(tmp_path / "out")
    assert export_folder(tmp_path / "out", tmp_path / "back")["not_written"] == [name]
    assert_identical(tensors_in(tmp_path / "back"), tensors)


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_verify_finds_a_single_bit(tmp_path, source, dtype):
    tiny_llama(tmp_path / "source")
    save(plan_folder(tmp_path / "source", dtype=dtype), tmp_path / "out")
    if not source:
        shutil.move(tmp_path / "source", tmp_path / "away")
    verified(tmp_path / "out")
    chunk = tmp_path / "out/params/decoder.layers.attn.k.kernel/0.0.0.0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1  # in layer 1 of 3
    chunk.write_bytes(data)
    result = verify_folder(tmp_path / "out", logits=False)
    assert not result["ok"]
    (sentence,) = result["mismatches"]
    assert "model.layers.1.self_attn.k_proj.weight" in sentence
    if source:
        assert "1 values" in sentence
        assert "instead of" in sentence


def test_verify_finds_changed_files_and_other_sources(tmp_path):
    tiny_llama(tmp_path / "source")
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    tiny_llama(tmp_path / "other", seed=1)
    result = verify_folder(tmp_path / "out", tmp_path / "other", logits=False)
    assert len(result["mismatches"]) == len(plan_folder(tmp_path / "other").headers.tensors)
    (tmp_path / "out/tokenizer.json").write_text("{}")
    (tmp_path / "out/tokenizer_config.json").unlink()
    found = verify_folder(tmp_path / "out", logits=False)["mismatches"]
    assert found == [
        "tokenizer.json was changed after the conversion", "tokenizer_config.json is missing"
    ]  # fmt: skip
    with pytest.raises(UserError, match="not a converted"):
        verify_folder(tmp_path / "source")
    with pytest.raises(UserError, match="not a converted"):
        export_folder(tmp_path / "source", tmp_path / "x")


def test_export_is_atomic_and_careful(tmp_path, monkeypatch):
    tiny_llama(tmp_path / "source")
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    (tmp_path / "back").mkdir()
    with pytest.raises(UserError, match="exists"):
        export_folder(tmp_path / "out", tmp_path / "back")
    (tmp_path / "new.partial").mkdir()
    with pytest.raises(UserError, match="in the way"):
        export_folder(tmp_path / "out", tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr("model_ports.convert.export._copy_side_files", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_folder(tmp_path / "out", tmp_path / "third")
    assert not list(tmp_path.glob("third*"))
    # What a kill leaves is replaced.
    (tmp_path / "fourth.partial").mkdir()
    (tmp_path / "fourth.partial/.vrh-export").touch()
    (tmp_path / "fourth.partial/model.safetensors").touch()
    export_folder(tmp_path / "out", tmp_path / "fourth")
    assert not list(tmp_path.glob("fourth.partial"))


def test_parameters_in_memory_become_a_folder(tmp_path):
    tensors = tiny_llama(tmp_path / "source")
    model = load_model(tmp_path / "source")
    raw = json.loads((tmp_path / "source/config.json").read_text())
    export_params(PORT, raw, model.params, tmp_path / "back", side_folder=tmp_path / "source")
    assert_identical(tensors_in(tmp_path / "back"), tensors)
    assert load_model(tmp_path / "back").fingerprint == model.fingerprint
    del model.params["decoder"]["final_norm"]
    with pytest.raises(UserError, match="final_norm"):
        export_params(PORT, raw, model.params, tmp_path / "bad")


def test_sizes():
    assert parse_size("5GB") == 5 * 10**9
    assert parse_size("1.5 MiB") == 3 * 2**19
    assert parse_size("123") == 123
    for bad in ("", "5 parsecs", "-1", "0", "GB"):
        with pytest.raises(UserError, match="5GB"):
            parse_size(bad)
