"""How each model family writes boxes: known without its port.

Units and frame follow each family's own documentation (docs/answers.md); a test compares them
with the ports. The scale is a property of the model and never read off the numbers.
"""

import re

from model_ports.box_format import BoxFormat
from model_ports.errors import UserError

_LIST = "[{x0}, {y0}, {x1}, {y1}]"
_JSON = f'```json\n[{{{{"bbox_2d": {_LIST}, "label": "{{label}}"}}}}]\n```'
_LOC = "<loc{y0:04d}><loc{x0:04d}><loc{y1:04d}><loc{x1:04d}> {label}"

QWEN2_5 = BoxFormat("resized_pixels", _JSON)
QWEN3 = BoxFormat("norm1000", _JSON)
INTERNVL = BoxFormat("norm1000", f"<ref>{{label}}</ref><box>[{_LIST}]</box>")
GLM = BoxFormat("norm1000", f"<|begin_of_box|>[{_LIST}]<|end_of_box|>")
DEEPSEEK = BoxFormat("norm999", f"<|ref|>{{label}}<|/ref|><|det|>[{_LIST}]<|/det|>")
PALIGEMMA = BoxFormat("norm1023", _LOC, y_first=True)
UNIT = BoxFormat("unit", _LIST)
THOUSAND = BoxFormat("norm1000", f"[{_LIST}]")

# Matched inside a name without its punctuation ("OpenGVLab/InternVL3-8B" has "internvl"); the
# first match counts, so what a model is built on comes after what it is.
_FAMILIES: dict[str, BoxFormat] = {
    "paligemma": PALIGEMMA,
    "deepseek": DEEPSEEK,
    "llava": UNIT,
    "magma": UNIT,
    "phi4": UNIT,
    "phi": UNIT,
    # relatives whose answers circulate in the same forms
    "rexomni": BoxFormat("norm999", "<|box_start|><{x0}><{y0}><{x1}><{y1}><|box_end|>"),
    "visualrft": THOUSAND,
    "vlmr1": QWEN2_5,
    "univg": THOUSAND,
    "seed": THOUSAND,
    "internlm": THOUSAND,
    "cogvlm": THOUSAND,
    "cogagent": THOUSAND,
    "kimi": UNIT,
    "minicpm": THOUSAND,
    # and the rest of the families
    "internvl": INTERNVL,
    "glm": GLM,
    "qwen25": QWEN2_5,
    "qwen2vl": QWEN3,
    "qwen3": QWEN3,
    "qwenvl": QWEN3,
    "qwen": QWEN2_5,
    # the models that ship with the project
    "intern": INTERNVL,
    "control": INTERNVL,
    "organism": INTERNVL,
}


def box_format(model: str) -> BoxFormat:
    """How a model states boxes, by its name or its family's.

    Raises:
        UserError: the name is of no known family.
    """
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    for family, known in _FAMILIES.items():
        if family in name:
            return known
    raise UserError(
        f"no box format is known for model {model!r}; expected a name that contains one of "
        f"{', '.join(_FAMILIES)}, or pass the port's BoxFormat"
    )
