"""PaliGemma 2: SigLIP, one linear projector and Gemma 2 with a bidirectional prefix. See
README.md."""

from model_ports.box_format import BoxFormat
from model_ports.port import Port
from model_ports.vlms.paligemma2.config import PaliGemma2Config, read_config
from model_ports.vlms.paligemma2.model import PaliGemma2, layouts
from model_ports.vlms.paligemma2.processor import PaliGemma2Processor

__all__ = ["PORT", "PaliGemma2", "PaliGemma2Config", "PaliGemma2Processor"]

PORT = Port(
    family="paligemma2",
    model_types=("paligemma",),
    read_config=read_config,
    build=PaliGemma2,
    layouts=layouts,
    processor=PaliGemma2Processor.from_folder,
    # 1024 location tokens over the whole image, y before x; big_vision reads v / 1023.
    box=BoxFormat(
        units="norm1023",
        template="<loc{y0:04d}><loc{x0:04d}><loc{y1:04d}><loc{x1:04d}> {label}",
        y_first=True,
    ),
    names={"paligemma2-10b": ("google/paligemma2-10b-mix-448", "google/paligemma2-10b-pt-448")},
)
