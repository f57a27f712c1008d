"""Sizes and divisors of any config.json: zero, less and no number at all are refused by name."""

import math

import pytest
from support.checkpoints import llama_config

from model_ports.backbones.llama import PORT
from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.registry import port_for


@pytest.mark.parametrize("value", [0, -2, math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta"]
)
def test_a_number_that_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"config\.json: {name} = .*expected"):
        PORT.read_config(llama_config(**{name: value}))


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "qwen3-vl-8b", "glm-4.6v-flash"])
def test_older_name_of_the_image_channels(name: str) -> None:
    raw = published_config(name)
    port = port_for(raw)
    older = raw | {"vision_config": raw["vision_config"] | {"in_chans": 3}}
    assert port.read_config(older) == port.read_config(raw)
    older["vision_config"]["in_chans"] = 1
    with pytest.raises(UserError, match="in_chans"):
        port.read_config(older)
