"""Question-answering benchmarks from their published files; synthetic where those are not free."""

import base64
import gzip
import io
import json
import os
import pickle
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.answers import judge
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.benchmarks.mmstar import split_options
from vrh_jax.data.benchmarks.spatialrgpt import draw_regions
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.recognise_questions import recognise_questions
from vrh_jax.data.registry import load
from vrh_jax.data.source import View, shard
from vrh_jax.engine.batching import Task, blocks

REAL = os.environ.get("VRH_REALDATA")
real = pytest.mark.skipif(not REAL, reason="VRH_REALDATA does not name a copy of the real files")


def png(seed=0, size=(40, 30), mode="RGB"):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


def cell(seed=0, **how):
    return {"bytes": png(seed, **how), "path": None}


def parquet(path, rows, image="image"):
    schema = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = [n for n in rows[0] if n != image]
    table = pa.table({n: [row[n] for row in rows] for n in names})
    table = table.append_column(image, pa.array([row[image] for row in rows], schema))
    pq.write_table(table, path, row_group_size=7)
    return path


def read(task, **options):
    settings = BenchmarkSettings(task=task, options={k: str(v) if isinstance(v, Path) else v
                                                     for k, v in options.items()})  # fmt: skip
    return load("b", settings, "evaluation", 1)[0]


def check(samples):
    """What holds for every source of samples."""
    assert [s.id for s in samples] == [k.id for k in samples.keys()]  # noqa: SIM118
    for sample, key in zip(samples, samples.keys(), strict=True):
        assert (sample.image_id, sample.kind) == (key.image_id, key.kind)
        assert sample.image().size == sample.image_size
        assert sample.image().mode == "RGB"
        assert judge(sample, sample.answer + (f" {sample.unit}" if sample.unit else "")).correct
        for nothing in ("", "  \n", "nan", None, float("nan")):
            assert judge(sample, nothing).failure == "parse_failure"
    again = pickle.loads(pickle.dumps(samples))
    assert list(again) == list(samples)
    return samples


def cv_rows():
    rows = []
    for i, (part, task, source) in enumerate(
        [("2D", "Count", "ADE20K"), ("2D", "Relation", "COCO"), ("3D", "Depth", "Omni3D")] * 3
    ):
        rows.append({
            "idx": i, "type": part, "task": task, "image": cell(i), "question": f"How many {i}?",
            "choices": ["0", "3", "2", "1"], "answer": "(C)", "source": source,
            "prompt": "How many? (A) 0 (B) 3 (C) 2 (D) 1", "filename": f"img/{part}/{i}.png",
            "source_filename": f"{i // 6}00000{i % 3:06d}.jpg",
        })  # fmt: skip
    return rows


@pytest.fixture
def cv_bench(tmp_path):
    rows = cv_rows()
    parquet(tmp_path / "test_2d.parquet", [r for r in rows if r["type"] == "2D"])
    parquet(tmp_path / "test_3d.parquet", [r for r in rows if r["type"] == "3D"])
    return tmp_path


def test_cv_bench_of_both_parts(cv_bench):
    samples = check(read("cv_bench", path=cv_bench))
    assert Counter(s.category for s in samples) == {
        "ADE20K/Count": 3, "COCO/Relation": 3, "Omni3D/Depth": 3
    }  # fmt: skip
    assert (samples[0].choices, samples[0].answer) == (("0", "3", "2", "1"), "2")
    assert samples[0].source == "test_2d.parquet#0"
    assert len(read("cv_bench", path=cv_bench, part="3d")) == 3
    # "3" is an option's text, and no letter; 3D lists the same objects.
    assert not judge(samples[0], "3").correct
    assert judge(samples[0], "2").correct


def test_cv_bench_json_lines_name_image_files(tmp_path):
    for row in (rows := cv_rows()):
        file = tmp_path / row["filename"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row.pop("image")["bytes"])
    for part in ("2d", "3d"):
        lines = [json.dumps(r) for r in rows if r["type"].lower() == part]
        (tmp_path / f"test_{part}.jsonl").write_text("\n".join(lines) + "\n")
    assert len(check(read("cv_bench", path=tmp_path))) == 9


def test_cv_bench_keeps_pictures_of_coco_under_their_common_id(cv_bench):
    ids = {s.image_id for s in read("cv_bench", path=cv_bench) if s.category.startswith("COCO")}
    assert ids == {"coco-1", "100000000001.jpg"} or all(i.startswith("coco-") for i in ids)


def test_one_missing_part_is_named(cv_bench):
    (cv_bench / "test_3d.parquet").unlink()
    with pytest.raises(UserError, match=r"test_3d\.parquet: no such file"):
        read("cv_bench", path=cv_bench)


MMSTAR = "What is shown?\nOptions: A: a cat, B: a dog, or B: two, C: 3, 4, D: none of them."


def mmstar_row(i):
    return {
        "index": i, "question": MMSTAR, "image": cell(i), "answer": "ABCD"[i % 4],
        "category": "math", "l2_category": "geometry", "bench": "x",
    }  # fmt: skip


def test_mmstar_parquet(tmp_path):
    parquet(tmp_path / "mmstar.parquet", [mmstar_row(i) for i in range(9)])
    samples = read("mmstar", path=tmp_path)
    assert len(samples) == 9
    assert samples[1].text == "What is shown?"
    assert samples[1].choices[0] == "a cat"
    assert len(samples[1].choices) == 4
    assert samples[1].answer == samples[1].choices[1]
    assert samples[1].category == "math/geometry"
    assert judge(samples[1], "B").correct
    assert judge(samples[1], "").failure == "parse_failure"


def test_mmstar_table_of_vlmevalkit(tmp_path):
    row = {**mmstar_row(0), "A": "x", "B": "y\nz", "C": '"q"', "D": "w"}
    row["question"] = "Which?"
    names = [n for n in row if n != "image"]
    quoted = ['"' + str(row[n]).replace('"', '""') + '"' for n in names]
    image = base64.b64encode(row["image"]["bytes"]).decode()
    (tmp_path / "MMStar.tsv").write_text(
        "\t".join([*names, "image"]) + "\n" + "\t".join([*quoted, image]) + "\n"
        # The table names the row whose image is the same.
        + "\t".join(["7", *quoted[1:], "0"]) + "\n"
    )  # fmt: skip
    samples = read("mmstar", path=tmp_path)
    assert [s.id for s in samples] == ["0", "7"]
    assert samples[0].choices == ("x", "y\nz", '"q"', "w")
    assert samples[0].text == "Which?"
    assert all(s.image().size == (40, 30) for s in samples)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("Q?\nOptions: A: yes, B: no", ("yes", "no")),
        ("Q? Options: A: 10:30, B: 11:30, C: B: 12", ("10:30", "11:30", "B: 12")),
        ("Q?\nOptions: A. one\nB. two\nC. three", ("one", "two", "three")),
        ("Options: are they? \nOptions: A: x, y, B: z", ("x, y", "z")),
        ("Vitamin A: what is it?", ()),
        ("Options: A: only", ()),
    ],
)
def test_options_inside_the_question(text, choices):
    stem, found = split_options(text)
    assert found == choices
    assert stem == (text if not choices else text[: text.rindex("Options")].rstrip())


@pytest.fixture
def spatial457(tmp_path):
    (tmp_path / "questions").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png())
    answers = ["red", True, False, "3", "school bus"]
    asked = [
        {"question": f"Q{i}?", "answer": a, "image_filename": "a.png", "question_index": 100}
        for i, a in enumerate(answers)
    ]
    path = tmp_path / "questions" / "L1_single.json"
    path.write_text(json.dumps({"info": {"split": "val"}, "questions": asked}))
    return tmp_path


def test_spatial457_with_booleans(spatial457):
    samples = check(read("spatial457", path=spatial457))
    assert [s.answer for s in samples] == ["red", "True", "False", "3", "school bus"]
    assert len({s.image_id for s in samples}) == 1
    assert judge(samples[1], "{'Reasoning': 'no', 'Answer': 'Yes'}").correct
    assert judge(samples[2], "No").correct
    assert not judge(samples[4], "double bus").correct  # the official scorer's leniency


def test_spatial457_of_all_levels_gives_level_one(tmp_path):
    rows = [
        {"index": i, "category": c, "question": "Q?", "answer": "red", "image": cell(i)}
        for i, c in enumerate(["L2_objects", "L1_single", "L1_single"])
    ]
    parquet(tmp_path / "validation-00000-of-00001.parquet", rows)
    samples = check(read("spatial457", path=tmp_path))
    assert [(s.id, s.source[-2:]) for s in samples] == [
        ("L1_single-1", "#1"),
        ("L1_single-2", "#2"),
    ]


def size_row(i, category="width_data", answer="Region [0] is 48.47 centimeters in width.", **more):
    return {
        "id": f"q{i}", "image_info": {"file_path": "omni/a.png", "height": 30, "width": 40},
        "text_q": "How wide is Region [0]?", "bbox": [[-2, 3, 30, 28], [1, 1, 5, 5]], "rle": [{}],
        "qa_info": {"type": "quantitative", "category": category},
        "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": answer}],
        **more,
    }  # fmt: skip


def write_sizes(folder, rows):
    (folder / "omni").mkdir(exist_ok=True)
    (folder / "omni" / "a.png").write_bytes(png())
    (folder / "SpatialRGPT-Bench_v1.json").write_text(json.dumps(rows))
    return folder


def test_spatialrgpt_sizes(tmp_path):
    rows = [
        size_row(0),
        size_row(1, "height_data", "It is 6.91 feet tall."),
        size_row(2, "distance_data"),
        size_row(3, "height_data", "10.0 inches", text_q="How tall is Region [1]?"),
    ]
    samples = check(read("spatialrgpt", path=write_sizes(tmp_path, rows)))
    assert [s.id for s in samples] == ["q0", "q1", "q3"]
    assert [float(s.answer) for s in samples] == pytest.approx([0.4847, 6.91 * 0.3048, 0.254])
    assert samples[0].box == (0, 3, 30, 28)  # cut to the image, as the official evaluation does
    assert samples[2].box == (1, 1, 5, 5)
    assert len(read("spatialrgpt", path=tmp_path, categories=["width_data"])) == 1
    # Metric or imperial: 48.47 cm is 19.08 inches; "10.0 inches printed as 0.25" is a metre's.
    assert judge(samples[0], "Region [0] is 19 inches wide").correct
    assert not judge(samples[0], "Region [0]").correct
    assert judge(samples[2], "0.25 m").correct
    assert not judge(samples[2], "0.25 inches").correct


def test_spatialrgpt_regions_are_drawn_only_if_asked(tmp_path):
    write_sizes(tmp_path, [size_row(0)])
    plain = Image.open(tmp_path / "omni" / "a.png")
    images = {m: read("spatialrgpt", path=tmp_path, marks=m)[0].image() for m in
              ("none", "box", "mark")}  # fmt: skip
    assert np.array_equal(images["none"], plain)
    for how in ("box", "mark"):
        assert images[how].size == plain.size
        assert not np.array_equal(images[how], plain)
    wide = draw_regions(Image.new("RGB", (400, 300)), [(50, 60, 200, 250)], "box")
    pixels = np.asarray(wide)
    assert pixels[200, 50].any()
    assert pixels[249, 100].any()
    assert not pixels[200, 125].any()  # the region itself is not painted over
    assert not pixels[250:, :].any()  # half-open: nothing beyond the box


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"answer": "about three apples"}, "no length with a unit"),
        ({"text_q": "How wide is Region [2]?"}, "region without a box"),
    ],
)
def test_spatialrgpt_without_truth_or_region(tmp_path, change, expected):
    with pytest.raises(UserError, match=rf"v1\.json#1: .*{expected}"):
        read("spatialrgpt", path=write_sizes(tmp_path, [size_row(0), size_row(1, **change)]))


def countbench_rows(captions, missing=(), grey=()):
    rows = []
    for i, entry in enumerate(captions):
        picture = cell(i, size=(9, 8), mode="L" if i in grey else "RGB")
        rows.append({**entry, "image": None if i in missing else picture})
    return rows


CAPTIONS = [{"image_url": f"http://x/{i}", "text": "photo of three cats", "number": 3 + i % 8}
            for i in range(20)]  # fmt: skip


def write_countbench(folder, captions, questions, **how):
    parquet(folder / "train-00000-of-00001-cf54.parquet", countbench_rows(captions, **how))
    (folder / "countbench_paired_questions.json").write_text(json.dumps(questions))
    return folder


def test_countbench_never_shows_its_caption(tmp_path):
    asked = [{"question": f"How many things {i}?"} for i in range(20)]
    write_countbench(tmp_path, CAPTIONS, asked, missing={2, 5}, grey={7})
    samples = check(read("countbench", path=tmp_path))
    assert len(samples) == 18
    assert len(read("countbench", path=tmp_path, rows="color")) == 17
    assert samples[2].text == "How many things 3?"  # aligned by place, after a gap
    assert samples[2].answer == "6"
    assert all("three" not in f"{s.text} {dict(s.row)}" for s in samples)
    three = samples[0]
    assert judge(three, "three").correct
    assert not judge(three, "13").correct


def test_countbench_needs_a_question_per_caption(tmp_path):
    write_countbench(tmp_path, CAPTIONS, [{"question": "How many?"}] * 19)
    with pytest.raises(UserError, match="19 entries for 20"):
        read("countbench", path=tmp_path)


@real
def test_countbench_real_entries(tmp_path):
    folder = Path(REAL) / "countbench"
    samples = read("countbench", path=folder / "CountBench.json", images=tmp_path)
    captions = json.loads((folder / "CountBench.json").read_text())
    assert len(samples) == 540
    assert {int(s.answer) for s in samples} == set(range(2, 11))
    assert samples[0].text == "How many headsets are there in the image?"
    for sample, entry in zip(samples, captions, strict=True):
        assert sample.answer == str(entry["number"])
        assert entry["text"] not in (sample.text, *map(str, sample.row.values()))
    # Missing pictures are failed samples, not missing ones.
    assert samples[3].image_size == (0, 0)
    with pytest.raises(UserError, match=r"3\.jpg"):
        samples[3].image()


@real
@pytest.mark.parametrize(("rows", "count"), [("all", 491), ("color", 490)])
def test_countbench_counts(tmp_path, rows, count):
    folder = Path(REAL) / "countbench"
    captions = json.loads((folder / "CountBench.json").read_text())
    asked = json.loads((folder / "countbench_paired_questions.json").read_text())
    write_countbench(tmp_path, captions, asked, missing=set(range(0, 490, 10)), grey={31})
    samples = read("countbench", path=tmp_path, rows=rows)
    assert len(samples) == count
    assert all(s.text == asked[int(s.id.split("-")[1])]["question"] for s in samples)


MATH = [
    {"pid": "1", "question": "d?", "choices": None, "unit": None, "precision": 1, "answer": "1.2",
     "question_type": "free_form", "answer_type": "float"},
    {"pid": "2", "question": "Volume?", "choices": None, "unit": "g", "precision": None,
     "answer": "1000", "question_type": "free_form", "answer_type": "integer"},
    {"pid": "3", "question": "Angle?", "choices": ["145°", "55°"], "unit": None, "precision": None,
     "answer": "145°", "question_type": "multi_choice", "answer_type": "text"},
    {"pid": "4", "question": "Years?", "choices": None, "unit": None, "precision": None,
     "answer": "[2014, 2016]", "question_type": "free_form", "answer_type": "list"},
]  # fmt: skip


def test_mathvista_parquet_and_json_agree(tmp_path):
    for row in MATH:
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{row['pid']}.png").write_bytes(png(int(row["pid"])))
    rows = [{**row, "image": f"images/{row['pid']}.png"} for row in MATH]
    with gzip.open(tmp_path / "testmini.json.gz", "wt") as file:
        json.dump({row["pid"]: row for row in rows}, file)
    named = check(read("mathvista", path=tmp_path))
    pictures = [{**row, "decoded_image": cell(int(row["pid"]))} for row in rows]
    parquet(tmp_path / "testmini-00000-of-00001-725687bf.parquet", pictures, "decoded_image")
    stored = check(read("mathvista", path=tmp_path))
    assert [s.id for s in stored] == [s.id for s in named] == ["1", "2", "3", "4"]
    for one, other in zip(stored, named, strict=True):
        assert (one.text, one.answer, one.kind, one.choices, one.precision) == (
            other.text, other.answer, other.kind, other.choices, other.precision
        )  # fmt: skip
        assert np.array_equal(one.image(), other.image())
    assert [s.kind for s in stored] == ["number", "number", "choice", "text"]
    assert stored[1].text == "Volume? (Unit: g)"


def test_missing_shards_are_named(tmp_path):
    row = {**MATH[0], "image": "1", "decoded_image": cell(1)}
    parquet(tmp_path / "testmini-00000-of-00002-ab.parquet", [row], "decoded_image")
    with pytest.raises(UserError, match="1 of the 2 shards"):
        read("mathvista", path=tmp_path)


@real
def test_mathvista_real_questions():
    samples = read("mathvista", path=Path(REAL) / "mathvista")
    assert len(samples) == 1000
    assert Counter(s.kind for s in samples) == {"choice": 540, "number": 458, "text": 2}
    assert Counter(s.precision for s in samples if s.precision) == {1: 20, 2: 20}
    lengths = [len(s.choices) for s in samples if s.kind == "choice"]
    assert (min(lengths), max(lengths)) == (2, 8)
    wrong = []
    for sample in samples:
        said = [sample.answer, f"The answer is {sample.answer}."]
        if sample.kind == "choice":
            letter = "ABCDEFGH"[sample.choices.index(sample.answer)]
            if re.fullmatch(r"\W?[A-Za-z]\W?", sample.answer):
                said = []  # such a text reads as a letter, officially too
            said += [letter, f"({letter}) {sample.answer}", f"The answer is ({letter})."]
        wrong += [(sample.id, text) for text in said if not judge(sample, text).correct]
    assert wrong == []
    assert samples[0].image_size == (1514, 720)  # as annotated, since the image is not there


def write_choices(folder, *rows):
    (folder / "a.png").write_bytes(png())
    (folder / "own.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder / "own.jsonl"


OWN = {"image": "a.png", "question": "Which?", "choices": ["red", "blue", "green"], "answer": "red"}


def test_own_multiple_choice(tmp_path):
    path = write_choices(
        tmp_path, OWN, {**OWN, "answer": "C"}, {**OWN, "answer": 1}, {**OWN, "answer": "(a)"},
        {**OWN, "choices": {"B": "two", "A": "one"}, "answer": "B", "id": "q", "group": "g",
         "box": [1, 2, 30, 20], "category": "c"},
        {**OWN, "choices": ["C", "B", "A"], "answer": "A"},
    )  # fmt: skip
    samples = read("multiple_choice", path=path)
    check(View(samples, range(5)))
    # In the file an option's text comes before its letter: the text "A" is the third option.
    assert [s.answer for s in samples] == ["red", "green", "blue", "red", "two", "A"]
    assert judge(samples[5], "C").correct  # what a model prints is a letter
    assert (samples[4].choices, samples[4].group, samples[4].category) == (("one", "two"), "g", "c")
    assert samples[4].box == (1, 2, 30, 20)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"answer": "purple"}, "none of the options"),
        ({"answer": "D"}, "none of the options"),
        ({"answer": 3}, "no option's number"),
        ({"choices": ["red"]}, "2 to 26"),
        ({"choices": ["red", "red"]}, "given twice"),
        ({"choices": {"A": "red", "C": "blue"}}, "letters from A"),
        ({"box": [1, 2, 3]}, "four numbers"),
        ({"choises": []}, "did you mean 'choices'"),
        ({"question": ""}, "'question' is missing"),
    ],
)
def test_own_multiple_choice_errors_name_the_entry(tmp_path, change, expected):
    with pytest.raises(UserError, match=rf"own\.jsonl#1: .*{expected}"):
        read("multiple_choice", path=write_choices(tmp_path, OWN, {**OWN, **change}))


def test_a_broken_image_is_a_sample_without_pixels(tmp_path):
    path = write_choices(tmp_path, OWN)
    (tmp_path / "a.png").write_bytes(b"no image")
    (sample,) = read("multiple_choice", path=path)
    assert sample.image_size == (0, 0)
    with pytest.raises(UserError, match=r"a\.png"):
        sample.image()


@pytest.mark.parametrize("task", ["cv_bench", "mmstar", "spatial457", "spatialrgpt", "countbench",
                                  "mathvista", "multiple_choice"])  # fmt: skip
def test_missing_files_are_named(tmp_path, task):
    with pytest.raises(UserError, match=tmp_path.name):
        read(task, path=tmp_path)
    with pytest.raises(UserError, match=r"nothing\.parquet"):
        read(task, path=tmp_path / "nothing.parquet")


def test_files_are_recognised(tmp_path, cv_bench):
    assert recognise_questions(cv_bench) == [("cv_bench", {"path": cv_bench})]
    folder = tmp_path / "other"
    (folder / "data").mkdir(parents=True)
    parquet(folder / "data" / "mmstar.parquet", [mmstar_row(0)])
    write_sizes(folder, [size_row(0)])
    write_choices(folder, OWN)
    asked = [{"question": "How many?"}] * 20
    write_countbench(folder, CAPTIONS, asked)
    assert sorted(task for task, _ in recognise_questions(folder)) == [
        "countbench", "mmstar", "multiple_choice", "spatialrgpt"
    ]  # fmt: skip
    for task, options in recognise_questions(folder):
        assert len(read(task, **options)) == {"countbench": 20}.get(task, 1)
    (folder / "noise.json").write_text("{")
    (folder / "noise.jsonl").write_text("[1]")
    (folder / "noise.parquet").write_bytes(b"x")
    assert len(recognise_questions(folder)) == 4


@real
@pytest.mark.parametrize(
    ("path", "task"),
    [("mathvista/testmini.json.gz", "mathvista"), ("countbench", "countbench")],
)
def test_real_files_are_recognised(path, task):
    ((found, options),) = recognise_questions(Path(REAL) / path)
    assert found == task
    assert len(read(task, **options)) == {"mathvista": 1000, "countbench": 540}[task]


def test_no_sample_is_lost_at_the_end_of_a_batch_or_of_a_process(cv_bench):
    # Qwen-VL's evaluation drops the last incomplete batch: 10 items in batches of 8.
    samples = list(read("cv_bench", path=cv_bench))[:9]
    prompt = TaskPrompt("{text}", image_first=True, max_new=4)
    chunks = blocks([Task(sample, prompt) for sample in samples], 8)
    assert sorted(t.sample.id for chunk in chunks for t in chunk) == sorted(s.id for s in samples)
    shards = [shard(samples, i, 4) for i in range(4)]
    assert sorted(s.id for part in shards for s in part) == sorted(s.id for s in samples)


def test_countbench_with_its_own_questions(tmp_path):
    rows = [
        {"text": "three cats", "question": f"How many {i}?", "number": 2 + i, "image": cell(i)}
        for i in range(9)
    ]
    (tmp_path / "data").mkdir()
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    samples = check(read("countbench", path=tmp_path))
    assert [s.text for s in samples] == [f"How many {i}?" for i in range(9)]
    assert all("cats" not in str(dict(s.row)) for s in samples)
