"""GLM-4.6V-Flash: one row of the registry. See README.md beside this file."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.glm4v.config import read_config
from model_ports.vlms.glm4v.model import Glm4v, layouts
from model_ports.vlms.glm4v.processor import Glm4vProcessor

PORT = Port(
    family="glm4v",
    model_types=("glm4v", "glm46v"),
    read_config=read_config,
    build=Glm4v,
    layouts=layouts,
    processor=Glm4vProcessor.load,
    # Per mille of the stored image's sides; printed numbers are 0 to 999.
    box=BoxFormat(
        units="norm1000",
        template="<|begin_of_box|>[[{x0}, {y0}, {x1}, {y1}]]<|end_of_box|>",
    ),
    names={"glm-4.6v-flash": ("zai-org/GLM-4.6V-Flash",)},
)
