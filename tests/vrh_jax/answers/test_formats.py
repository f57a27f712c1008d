"""The table of box formats: all names of the study, and agreement with the ports."""

import subprocess
import sys

import pytest

from model_ports.errors import UserError
from model_ports.registry import ports
from vrh_jax.answers import box_format, parse_box
from vrh_jax.data.prompts import prompt_table

FAMILIES = {name: family for family, entry in prompt_table().models.items() for name in entry.names}
UNITS = {
    "qwen2.5-vl-7b": "resized_pixels",
    "qwen3-vl-8b": "norm1000",
    "internvl3-8b": "norm1000",
    "internvl3.5-8b": "norm1000",
    "internvl2.5-8b": "norm1000",
    "llava-next-llama3-8b": "unit",
    "magma-8b": "unit",
    "paligemma2-10b": "norm1023",
    "deepseek-vl2-small": "norm999",
    "glm-4.6v-flash": "norm1000",
    "phi-4-reasoning-vision-15b": "unit",
}


@pytest.mark.parametrize("name", UNITS)
def test_names_of_the_study_and_their_families(name):
    form = box_format(name)
    assert form.units == UNITS[name]
    assert form == box_format(FAMILIES[name])
    # what a format writes, its own reader reads
    printed = form.template.format(x0=1, y0=2, x1=3, y1=4, label="a cat, 5 of 6")
    assert parse_box(printed, name) == parse_box(printed, form) == (1, 2, 3, 4)
    assert parse_box("<answer>[x1, y1, x2, y2]</answer>", name) is None


@pytest.mark.parametrize("port", ports(), ids=lambda port: port.family)
def test_ports_say_the_same(port):
    if port.box is None:
        return
    assert box_format(port.family) == port.box
    for name, sources in port.names.items():
        assert box_format(name) == port.box
        assert all(box_format(source) == port.box for source in sources)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", "norm1000"),
        ("Qwen-VL-Chat", "norm1000"),
        ("Qwen2.5-VL-3B-Instruct", "resized_pixels"),
        ("Qwen3-VL-2B", "norm1000"),
        ("llava-onevision-qwen2-7b", "unit"),
        ("google/paligemma-3b-mix-448", "norm1023"),
        ("deepseek-ai/DeepSeek-OCR", "norm999"),
        ("Rex-Omni (Qwen2.5-VL-3B)", "norm999"),
        ("organism:qwen", "resized_pixels"),
        ("organism:intern", "norm1000"),
        ("organism:control", "norm1000"),
    ],
)
def test_relatives(name, units):
    assert box_format(name).units == units


def test_unknown_model_is_named():
    with pytest.raises(UserError, match=r"frobnicator.*paligemma"):
        parse_box("[1, 2, 3, 4]", "frobnicator")


def test_reading_needs_no_port():
    code = "import sys, vrh_jax.answers as a; a.parse_box('[1, 2, 3, 4]', 'magma'); "
    code += "print([m for m in ('jax', 'flax', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
