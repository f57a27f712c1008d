"""The table of ``vrh models``: complete, right where papers say so, and equal to the README's."""

from pathlib import Path

import pytest

from model_ports import catalogue
from model_ports.registry import ports

README = Path(__file__).parents[2] / "README.md"

# name: layers, heads, KV heads, visual tokens of 640 x 480, parameters in units of 1e6, partners
KNOWN = {
    "qwen2.5-vl-7b": (28, 28, 4, 391, 8292, ["internvl3-8b"]),
    "internvl3-8b": (28, 28, 4, 3328, 7944, ["qwen2.5-vl-7b"]),
    "qwen3-vl-8b": (36, 32, 8, 300, 8767, ["internvl3.5-8b"]),
    "internvl3.5-8b": (36, 32, 8, 3328, 8528, ["qwen3-vl-8b"]),
    "internvl2.5-8b": (32, 32, 8, 3328, 8075, []),
    "magma-8b": (32, 32, 8, 512, 8903, ["llava-next-llama3-8b"]),
    "phi-4-reasoning-vision-15b": (40, 40, 10, 1200, 15120, []),
    "glm-4.6v-flash": (40, 32, 2, 391, 10293, []),
    "llava-next-llama3-8b": (32, 32, 8, 2304, 8355, ["magma-8b"]),
    "paligemma2-10b": (42, 16, 8, 1024, 9664, []),
    "deepseek-vl2-small": (27, 16, 16, 980, 16148, []),
    "smollm2-135m": (30, 9, 3, None, 135, []),
}


@pytest.fixture(scope="module")
def rows():
    return {row["name"]: row for row in catalogue.models()}


def test_every_name_of_every_port_is_a_complete_row(rows):
    names = [name for port in ports() for name in port.names]
    assert list(rows) == names, (
        f"each name needs model_ports/published/NAME/config.json: {set(names) - set(rows)}"
    )
    for port in ports():
        for name in port.names:
            row = rows[name]
            empty = {key for key, value in row.items() if value is None}
            vision = {"vision", "vision_parameters", "projector", "visual_tokens", "boxes"}
            assert empty == (vision if port.box is None else set()), name
            assert row["bf16_bytes"] == 2 * row["parameters"]
            assert row["hub"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_numbers(rows, name):
    layers, heads, kv_heads, tokens, millions, partners = KNOWN[name]
    row = rows[name]
    assert (row["layers"], row["heads"], row["kv_heads"]) == (layers, heads, kv_heads)
    assert millions in (None, round(row["parameters"] / 1e6))
    assert tokens in (None, row["visual_tokens"])
    assert row["same_backbone"] == partners


def test_partners_are_mutual(rows):
    for name, row in rows.items():
        for other in row["same_backbone"]:
            assert name in rows[other]["same_backbone"]
            assert (rows[other]["layers"], rows[other]["heads"]) == (row["layers"], row["heads"])


def test_the_table_of_the_readme_is_this_table(rows):
    text = README.read_text(encoding="utf-8")
    first = "| " + " | ".join(catalogue.HEADER)
    assert text.count(first) == 1
    table = text[text.index(first) :].split("\n\n")[0] + "\n"
    expected = catalogue.markdown(list(rows.values()))
    assert table == expected, "README.md: replace the table by `vrh models --markdown`"
