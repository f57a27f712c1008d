"""RefSpatial-Bench and Toloka VQA in their owners' formats, and RefCOCO prepared by TFDS."""

import csv
import json
import pickle
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.data.benchmarks import refspatial, toloka
from vrh_jax.data.benchmarks.refcoco import RefcocoOptions, load_refcoco
from vrh_jax.data.benchmarks.tfds_refcoco import is_prepared
from vrh_jax.data.source import keys
from vrh_jax.strict import parse_settings

MASKS = {
    "soft": (Image.fromarray(np.pad(np.uint8([[1, 90], [200, 255]]), ((3, 5), (4, 6)))),
             (4, 3, 6, 5)),
    "one pixel": (Image.fromarray(np.pad(np.uint8([[7]]), ((0, 9), (11, 0)))), (11, 0, 12, 1)),
    "1 bit": (Image.fromarray(np.pad(np.ones((2, 3), bool), ((8, 0), (0, 9)))), (0, 8, 3, 10)),
    "colour": (Image.fromarray(np.pad(np.uint8([[[0, 0, 3]]]), ((2, 7), (2, 9), (0, 0)))),
               (2, 2, 3, 3)),
    "16 bit": (Image.fromarray(np.pad(np.uint16([[300]]), ((1, 8), (1, 10)))), (1, 1, 2, 2)),
}  # fmt: skip


def with_alpha():
    mask = Image.new("RGBA", (12, 10), (0, 0, 0, 255))
    mask.putpixel((5, 6), (255, 255, 255, 255))
    return mask, (5, 6, 6, 7)


def palette():
    mask = Image.new("P", (12, 10), 0)
    mask.putpalette([0, 0, 0, 128, 0, 0])
    mask.putpixel((9, 9), 1)
    return mask, (9, 9, 10, 10)


MASKS |= {"alpha": with_alpha(), "palette": palette()}


def write_raw(folder, masks=MASKS):
    """The raw folders of BAAI/RefSpatial-Bench."""
    split = folder / "Location"
    for part in ("image", "mask"):
        (split / part).mkdir(parents=True)
    rows = []
    for number, (name, (mask, _)) in enumerate(masks.items()):
        Image.new("RGB", mask.size, (number // 2, 0, 0)).save(split / "image" / f"{number}.png")
        mask.save(split / "mask" / f"{number}.png")
        rows.append(
            {"id": number, "object": f"the {name} thing", "prompt": f"Point at the {name} thing.",
             "suffix": "Return points.", "step": 2, "rgb_path": f"image/{number}.png",
             "mask_path": f"mask/{number}.png"}
        )  # fmt: skip
    (split / "question.json").write_text(json.dumps(rows))
    return folder


def read_refspatial(path, **options):
    return refspatial.load(
        parse_settings(refspatial.RefSpatialOptions, {"path": path, **options}, "o"),
        "detection",
        1,
    )


def test_boxes_of_masks(tmp_path):
    source = read_refspatial(write_raw(tmp_path))
    samples = list(source)
    assert [s.box for s in samples] == [box for _, box in MASKS.values()]
    assert samples[0].text == "the soft thing"
    assert samples[0].category == "step 2"
    assert {s.image_size for s in samples} == {(12, 10)}
    assert [(k.image_id, k.id) for k in keys(source)] == [(s.image_id, s.id) for s in samples]
    # Copies of one picture are one image.
    assert samples[0].image_id == samples[1].image_id != samples[2].image_id
    asked = read_refspatial(tmp_path, text="prompt")
    assert asked[0].text == "Point at the soft thing."


def test_the_hubs_parquet_is_the_same(tmp_path):
    raw = write_raw(tmp_path / "raw")
    rows = json.loads((raw / "Location" / "question.json").read_text())

    def column(part):
        folder = raw / "Location" / part
        return [{"bytes": (folder / f"{r['id']}.png").read_bytes(), "path": "x.png"} for r in rows]

    plain = {k: [r[k] for r in rows] for k in ("id", "object", "prompt", "suffix", "step")}
    (tmp_path / "hub" / "data").mkdir(parents=True)
    table = pa.table({**plain, "image": column("image"), "mask": column("mask")})
    pq.write_table(
        table, tmp_path / "hub" / "data" / "location-00000-of-00001.parquet", row_group_size=3
    )
    ours, theirs = (list(read_refspatial(p)) for p in (raw, tmp_path / "hub"))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.id, a.text, a.box, a.image_id) == (b.id, b.text, b.box, b.image_id)
        assert a.image().tobytes() == b.image().tobytes()


def test_masks_without_a_box_are_refused(tmp_path):
    empty = {"empty": (Image.new("L", (5, 5)), None)}
    with pytest.raises(UserError, match=r"row 0: the mask has no pixel above 0"):
        read_refspatial(write_raw(tmp_path, empty))[0]
    Image.new("L", (6, 5), 9).save(tmp_path / "Location" / "mask" / "0.png")
    with pytest.raises(UserError, match="mask is 6x5, but the image 5x5"):
        read_refspatial(tmp_path)[0]
    (tmp_path / "Location" / "mask" / "0.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="mask cannot be read"):
        read_refspatial(tmp_path)[0]
    (tmp_path / "Location" / "image" / "0.png").unlink()
    Image.new("L", (6, 5), 9).save(tmp_path / "Location" / "mask" / "0.png")
    sample = read_refspatial(tmp_path)[0]  # a missing image is judged later
    assert (sample.image_size, sample.box) == ((0, 0), (0, 0, 6, 5))
    with pytest.raises(UserError, match=r"no placement\.parquet"):
        read_refspatial(tmp_path, split="placement")


def write_csv(folder, rows, header=toloka.COLUMNS):
    path = folder / "test_public.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_toloka(path, **options):
    given = {"path": path, **options}
    return toloka.load(parse_settings(toloka.TolokaOptions, given, "o"), "detection", 1)


URL = "https://toloka-cdn.azureedge.net/wsdmcup2023/000000001066.jpg"


def test_toloka(tmp_path):
    rows = [
        [URL, 50, 37, 13, 16, 21, 36, "Where, exactly, do we cook?"],
        [URL, 50, 37, 0, 0, 50, 37, 'The "line\nbreak"'],
    ]
    write_csv(tmp_path, rows)
    Image.new("RGB", (50, 37)).save(tmp_path / "000000001066.jpg")
    source = read_toloka(tmp_path)
    first, second = source
    assert first.text == "Where, exactly, do we cook?"
    assert second.text == 'The "line\nbreak"'
    assert first.box == (13, 16, 21, 36)
    assert first.image().size == first.image_size == (50, 37)
    assert first.image_id == second.image_id == "coco-1066"
    assert second.source.endswith("test_public.csv#1")
    assert list(pickle.loads(pickle.dumps(source))) == [first, second]


@pytest.mark.parametrize(
    ("rows", "header", "match"),
    [
        ([[URL, 50, 37, "", "", "", "", "x"]], toloka.COLUMNS, "row 0: left = ''.*hides the boxes"),
        ([[URL, 50, 37, 1, 2, 3.5, 4, "x"]], toloka.COLUMNS, "right = '3.5'; expected whole"),
        ([[URL, 50, 37]], toloka.COLUMNS, "line 2: expected 8 fields"),
        ([[URL]], ["image"], "column 'width' is missing"),
    ],
)
def test_bad_toloka_rows_are_named(tmp_path, rows, header, match):
    with pytest.raises(UserError, match=match):
        read_toloka(write_csv(tmp_path, rows, header))


def test_tfds_data_need_their_package(tmp_path, monkeypatch):
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / name).write_text("{}")
    assert is_prepared(tmp_path)
    options = RefcocoOptions(path=tmp_path)
    with pytest.raises(UserError, match="TFDS cannot read it"):
        load_refcoco("refcoco", options)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match=r"pip install 'vrh-jax\[tfds\]'"):
        load_refcoco("refcoco", options)
