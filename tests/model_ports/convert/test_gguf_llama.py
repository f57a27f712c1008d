"""GGUF files of tiny Llamas back to Hugging Face folders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.parity import assert_close, load_params

from model_ports.backbones.llama import PORT
from model_ports.convert import gguf_llama
from model_ports.convert.gguf_llama import convert_gguf, restore_rows
from model_ports.errors import UserError
from model_ports.port import abstract_model

tiny = pytest.importorskip("support.tiny_gguf", reason="needs gguf: pip install -e '.[smollm2]'")
VOCAB = len(tiny.token_list())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("matrix", "embedding", "tied"),
    [("Q4_1", "Q8_0", True), ("Q8_0", "F32", False), ("F32", "Q4_1", True), ("F16", "F16", False)],
)
def test_weights_come_back(tmp_path, matrix, embedding, tied) -> None:
    if matrix == "F16":
        weights = {
            k: v.astype(np.float16).astype(np.float32)
            for k, v in tiny.make_weights(1, VOCAB, tied=tied).items()
        }
    else:
        weights = tiny.make_weights(1, VOCAB, tied=tied)
    kinds = {"matrix": tiny.Kind[matrix], "embedding": tiny.Kind[embedding]}
    expected = tiny.write_gguf(tmp_path / "m.gguf", weights, **kinds)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", {"note": "x"})
    found = load_file(tmp_path / "out/model.safetensors")
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 1000.0
    assert config["tie_word_embeddings"] is tied
    assert json.loads((tmp_path / "out/source.json").read_text())["note"] == "x"
    assert names(tmp_path) == ["m.gguf", "out"]


@pytest.mark.parametrize("tied", [True, False])
def test_the_port_reads_the_folder_as_transformers_does(tmp_path, tied) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(2, VOCAB, tied=tied))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    from flax import nnx
    from transformers import LlamaForCausalLM

    from model_ports.prompt import collate

    reference = LlamaForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    config = PORT.read_config(json.loads((tmp_path / "out/config.json").read_text()))
    graphdef, abstract = abstract_model(PORT, config)
    tensors = load_file(tmp_path / "out/model.safetensors")
    model = nnx.merge(graphdef, load_params(abstract, PORT.layouts(config)["llama"], tensors))
    prompt = PORT.processor(tmp_path / "out", config).prepare("hello world 12 héllo")
    batch = collate([prompt])
    hidden, _, _ = model.decoder(model.embed(batch))
    with torch.no_grad():
        theirs = reference(torch.tensor(prompt.tokens[None].astype(np.int64))).logits[0]
    assert_close(model.decoder.logits(hidden)[0, -len(prompt) :], theirs, 1e-4, "logits")


@pytest.mark.parametrize(("heads", "size"), [(1, 2), (3, 8), (9, 64)])
def test_restored_rows(heads, size) -> None:
    weight = np.random.default_rng(0).normal(size=(heads * size, 5)).astype(np.float32)
    np.testing.assert_array_equal(restore_rows(tiny.permuted(weight, heads), heads), weight)


def test_tokenizer_gives_the_files_ids(tmp_path) -> None:
    from transformers import AutoTokenizer

    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(0, VOCAB, tied=True))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    tokens = tiny.token_list()
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokens)))) == tokens
    ids = tokenizer("hello world")["input_ids"]
    assert [tokens[i] for i in ids] == ["hello", "Ġworld"]
    # Digits stand alone although the file has the merge "1 2".
    assert [tokens[i] for i in tokenizer("12")["input_ids"]] == ["1", "2"]
    for text in ("hello <b>é日本</b>\n\n  x", " a  b ", "<|im_end|>hello"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("<|im_start|>")["input_ids"] == [1]
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (2, 1, 2)
    assert tokenizer.chat_template == tiny.TEMPLATE


def test_digits_are_merged_by_the_plain_gpt_2_pattern(tmp_path) -> None:
    from transformers import AutoTokenizer

    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(0, VOCAB, tied=True), pre="gpt-2")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert tokenizer.convert_ids_to_tokens(tokenizer("12")["input_ids"]) == ["12"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"llama.rope.scaling.type": "linear"}}, "rope.scaling.type"),
        ({"metadata": {"llama.expert_count": 4.0}}, "expert_count"),
        ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs"),
        ({"extra": {"blk.2.attn_norm.weight": np.ones(96, np.float32)}}, "blk.2"),
        ({"pre": "llama-bpe"}, "llama-bpe"),
    ],
)
def test_refuses_what_it_does_not_know(tmp_path, changes, message) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(0, VOCAB, tied=True), **changes)
    with pytest.raises(UserError, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert names(tmp_path) == ["m.gguf"]


def test_missing_and_misshapen_tensors(tmp_path) -> None:
    weights = tiny.make_weights(0, VOCAB, tied=True)
    gone = {k: v for k, v in weights.items() if "layers.1.mlp.up" not in k}
    tiny.write_gguf(tmp_path / "gone.gguf", gone)
    with pytest.raises(UserError, match=r"blk\.1\.ffn_up\.weight"):
        convert_gguf(tmp_path / "gone.gguf", tmp_path / "out")
    weights["model.norm.weight"] = np.ones(32, np.float32)
    tiny.write_gguf(tmp_path / "shape.gguf", weights)
    with pytest.raises(UserError, match=r"output_norm\.weight has shape"):
        convert_gguf(tmp_path / "shape.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95])
def test_a_truncated_file_is_an_error(tmp_path, share) -> None:
    path = tmp_path / "m.gguf"
    tiny.write_gguf(path, tiny.make_weights(0, VOCAB, tied=True))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError):
        convert_gguf(path, tmp_path / "out")
    assert names(tmp_path) == ["m.gguf"]


def test_an_existing_folder_is_left_alone(tmp_path) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(0, VOCAB, tied=True))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("x")
    with pytest.raises(UserError, match="exists already"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert (tmp_path / "out/mine").read_text() == "x"


def test_a_failure_while_writing_leaves_nothing(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    tiny.write_gguf(tmp_path / "m.gguf", tiny.make_weights(0, VOCAB, tied=True))
    monkeypatch.setattr(gguf_llama, "_write_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert names(tmp_path) == ["m.gguf"]
