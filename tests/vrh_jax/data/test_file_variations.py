"""The same annotations as other writers put them: types of columns, line ends, broken rows."""

import io
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.benchmarks.plain_pickle import load_plain_pickle
from vrh_jax.data.registry import load

CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
BOXES = [[1.0, 2.0, 30.0, 20.0], [3.0, 4.0, 10.0, 10.0]]
TEXTS = [["a", "b"], ["c"]]
FIXED = pa.array(BOXES, pa.list_(pa.float32(), 4))
LARGE = pa.array(TEXTS, pa.large_list(pa.large_string()))


def png():
    file = io.BytesIO()
    Image.fromarray(
        np.arange(64 * 48 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 64, 3)
    ).save(file, "PNG")
    return file.getvalue()


IN_FILE = {"bytes": png(), "path": None}


def parquet(path, cells, kind=CELL, name="image", **columns):
    table = pa.table(columns).append_column(name, pa.array(cells, kind))
    pq.write_table(table, path)
    return path


def read(task, path, **options):
    settings = BenchmarkSettings(task=task, options={"path": str(path), **options})
    return list(load("b", settings, "evaluation", 1)[0])


@pytest.mark.parametrize(
    ("boxes", "texts", "image", "kind"),
    [
        (BOXES, TEXTS, IN_FILE, CELL),
        (FIXED, LARGE, IN_FILE, CELL),
        ([json.dumps(box) for box in BOXES], TEXTS, png(), pa.binary()),
        (BOXES, TEXTS, png(), pa.large_binary()),
        (BOXES, TEXTS, {"bytes": None, "path": "x.png"}, CELL),
        (BOXES, TEXTS, "x.png", pa.string()),
    ],
)  # fmt: skip
def test_types_of_columns(tmp_path, boxes, texts, image, kind):
    (tmp_path / "x.png").write_bytes(png())
    names = ["COCO_train2014_000000000001_0.jpg", "COCO_train2014_000000000002_0.jpg"]
    file = tmp_path / "val-00000-of-00001.parquet"
    parquet(file, [image] * 2, kind, answer=texts, bbox=boxes, file_name=names)
    samples = read("refcoco", tmp_path)
    assert [s.text for s in samples] == ["a", "b", "c"]
    assert samples[0].box == (1, 2, 31, 22)
    assert samples[2].image().size == samples[2].image_size == (64, 48)


@pytest.mark.parametrize("choices", [["1", "2"], "['1', '2']", '["1", "2"]', [1, 2]])
def test_options_as_text(tmp_path, choices):
    columns = {"idx": 1, "type": "2D", "task": "Count", "question": "q", "choices": choices,
               "answer": "(B)", "source": "COCO"}  # fmt: skip
    file = tmp_path / "test_2d.parquet"
    parquet(file, [IN_FILE], **{k: [v] for k, v in columns.items()})
    assert [(s.choices, s.answer) for s in read("cv_bench", file)] == [(("1", "2"), "2")]


def mathvista(tmp_path, **change):
    columns = {"pid": "1", "question": "q", "image": "images/1.jpg", "choices": None, "unit": None,
               "precision": 1.0, "answer": "1.5", "question_type": "free_form",
               "answer_type": "float", "metadata": {"task": "geo"}} | change  # fmt: skip
    file = tmp_path / "testmini.parquet"
    parquet(file, [IN_FILE], name="decoded_image", **{k: [v] for k, v in columns.items()})
    return read("mathvista", file)[0]


def test_metadata_and_precision_as_text(tmp_path):
    sample = mathvista(tmp_path, metadata='{"task": "geo"}', precision="1.0")
    assert (sample.category, sample.precision) == ("free_form/geo", 1)
    for change in ({"metadata": "zzz"}, {"precision": "two"}, {"precision": "1.5"}):
        with pytest.raises(UserError, match=f"#0: {next(iter(change))} = "):
            mathvista(tmp_path, **change)


@pytest.mark.parametrize(("number", "count"), [(3, "3"), ("3", "3"), (3.0, "3"), ("many", None)])
def test_whole_numbers(tmp_path, number, count):
    file = parquet(tmp_path / "test.parquet", [IN_FILE], question=["q"], number=[number])
    if count is None:
        with pytest.raises(UserError, match="expected a whole number"):
            read("countbench", file)
    else:
        assert read("countbench", file)[0].answer == count


SIZE = {
    "id": "1",
    "image_info": {"file_path": "a.jpg", "height": 48, "width": 64},
    "text_q": "How wide is Region [0]?",
    "bbox": [[1, 2, 30, 90]],
    "qa_info": {"type": "quantitative", "category": "width_data"},
    "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "2.5 feet."}],
}


@pytest.mark.parametrize("form", [lambda row: [row], lambda row: {"x": row}, lambda row: row])
def test_one_entry_in_any_container(tmp_path, form):
    file = tmp_path / "SpatialRGPT-Bench_v1.json"
    file.write_text(json.dumps(form(SIZE)))
    (sample,) = read("spatialrgpt", file, marks="none")
    assert (sample.answer, sample.box) == ("0.762", (1, 2, 30, 48))


@pytest.mark.parametrize(
    "change",
    [
        {"qa_info": "width_data"},
        {"bbox": [1, 2, 3, 4]},
        {"bbox": [[1, 2, 3, None]]},
        {"bbox": None},
        {"image_info": 5},
        {"conversations": "x"},
        {"conversations": [None]},
    ],
)
def test_broken_sizes_are_named(tmp_path, change):
    file = tmp_path / "SpatialRGPT-Bench_v1.json"
    file.write_text(json.dumps([SIZE | change]))
    with pytest.raises(UserError, match=r"#0|entry 1"):
        read("spatialrgpt", file)


HEAD = "image,width,height,left,top,right,bottom,question\n"


@pytest.mark.parametrize("text", ["a\u2028b", "a\x0cb", "a\x85b", "a\x1cb", 'say ""b""', "a\nb"])
def test_no_character_ends_a_csv_row(tmp_path, text):
    row = f'https://x/000000000001.jpg,64,48,1.0,2,3,4,"{text}"\r\n'
    (tmp_path / "test_public.csv").write_bytes((HEAD + row + row).encode())
    assert [s.text for s in read("toloka", tmp_path)] == [text.replace('""', '"')] * 2


def test_json_lines_with_the_other_ending(tmp_path):
    rows = [{"image": "a.jpg", "sent": s, "bbox": [1, 2, 3, 4]} for s in "ab"]
    (tmp_path / "refcoco_val.json").write_text("\r\n".join(map(json.dumps, rows)))
    assert [s.text for s in read("refcoco", tmp_path)] == ["a", "b"]


VAW = {
    "image_id": "1",
    "instance_id": "10",
    "instance_bbox": [1.0, 2, 30, 20],
    "object_name": "car",
    "positive_attributes": ["red"],
    "negative_attributes": ["blue", "green", "black"],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positive_attributes": "red"}, "entry 0: positive_attributes"),
        ({"negative_attributes": 5}, "entry 0: negative_attributes"),
        ({"instance_bbox": ["a", 2, 3, 4]}, "#0: bbox"),
    ],
)
def test_broken_objects_are_named(tmp_path, change, message):
    (tmp_path / "test.json").write_text(json.dumps([VAW | change]))
    with pytest.raises(UserError, match=message):
        read("vaw", tmp_path / "test.json", images=str(tmp_path))


def test_refs_without_texts_are_named(tmp_path):
    instances = {"images": [{"id": 1, "width": 64, "height": 48}],
                 "annotations": [{"id": 5, "bbox": [1, 2, 3, 4]}]}  # fmt: skip
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    for name, sent in ((None, "a"), ("a.jpg", 5)):
        ref = {"ref_id": 1, "ann_id": 5, "image_id": 1, "file_name": name, "split": "val",
               "sentences": [{"sent": sent, "sent_id": 1}]}  # fmt: skip
        (tmp_path / "refs(unc).p").write_bytes(pickle.dumps([ref], 2))
        with pytest.raises(UserError, match="ref 0: expected texts"):
            read("refcoco", tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bytes_written_by_python_3(tmp_path, protocol):
    (tmp_path / "a.p").write_bytes(pickle.dumps([b"caf\xe9", b"", {b"k": [b"v"]}], protocol))
    assert load_plain_pickle(tmp_path / "a.p") == ["café", "", {"k": ["v"]}]


def test_no_other_codec(tmp_path):
    (tmp_path / "a.p").write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(UserError, match=r"_codecs\.encode with 'rot13'"):
        load_plain_pickle(tmp_path / "a.p")
