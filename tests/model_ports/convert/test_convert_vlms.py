"""Logits find what a comparison of bits against a wrong source cannot.

Conversion, verification and export of every vision-language port: vlms/test_every_port.py.
"""

from safetensors.numpy import load_file, save_file
from support import qwen25

from model_ports.convert.logits import compare_logits
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save


def test_a_wrong_permutation_shows_in_the_logits(tmp_path):
    """Swapped keys and values everywhere."""
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    for folder in (wrong, right):
        folder.mkdir()
        qwen25.write_checkpoint(folder, seed=3)
    tensors = load_file(wrong / "model.safetensors")
    for name in [n for n in tensors if "self_attn.k_proj" in n]:
        other = name.replace("k_proj", "v_proj")
        tensors[name], tensors[other] = tensors[other], tensors[name]
    save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
    save(plan_folder(wrong), tmp_path / "out")
    result = compare_logits(tmp_path / "out", right)
    assert not result["ok"]
    assert result["text"] > 1e-2
    # What float32 costs the reference is told apart from what is wrong.
    assert 0 < result["rounding"]["text"] < 1e-4
