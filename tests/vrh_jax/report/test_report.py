"""The page of a study: complete, self-contained, honest in both directions."""

import dataclasses
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from support.synthetic_study import KS, write_study

from model_ports.errors import UserError
from vrh_jax.report import findings, write_report
from vrh_jax.report.examples import excerpt
from vrh_jax.report.gallery import Attention, attention_picture, load_examples
from vrh_jax.study.layout import Layout


class Page(HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self, html):
        super().__init__()
        self.sources, self.alts, self.words, self.open = [], [], [], []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.sources += [v for k, v in attrs if k in ("src", "href")]
        if tag == "img":
            self.alts.append(given.get("alt"))
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def page(out):
    return Page((out / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    out = tmp_path_factory.mktemp("vision")
    summary, samples = write_study(out, models=("one", "two"), n=60, draws=3)
    weights = np.linspace(0, 1, 4).tolist()
    rects = [[x, y, x + 48, y + 48] for y in (0, 48) for x in (0, 48)]

    def attention(model, sample, k):
        assert k == max(KS)
        return Attention(rects, weights) if sample.kind == "grounding" else None

    write_report(out, samples, attention)
    return out, summary, samples


def test_one_file_with_everything_in_it(vision):
    out, _, _ = vision
    found = page(out)
    assert found.open == []
    assert found.sources
    assert all(s.startswith("data:image/png;base64,") for s in found.sources)
    assert all(found.alts)
    assert "width=device-width" in (out / "report.html").read_text()


def test_every_number_is_on_the_page(vision):
    out, summary, _ = vision
    text = page(out).text
    for entry in summary["accuracy"]:
        line = (
            f"{entry['model']} {entry['benchmark']} {entry['heads']} {entry['k']} {entry['draw']} "
            f"{entry['n']} {entry['correct']} {100 * entry['accuracy']:.1f} %"
        )
        assert line in text
    for effect in summary["effects"]:
        for control in effect["controls"].values():
            assert f"{100 * control['effect']:.1f} ({100 * control['effect_low']:.1f}" in text
    for entry in summary["transfer"]:
        assert f"{entry['spearman']:.2f} ({entry['spearman_low']:.2f}" in text
    for name, version in summary["versions"].items():
        assert f"{name} {version}" in text
    assert '"hash": "synthetic"' in text


def test_findings_of_a_strong_effect(vision):
    out, summary, _ = vision
    text = page(out).text
    assert "the difference exceeds sampling error in every model" in text
    assert "the least that 3 draws can give" in text
    effect = next(e for e in summary["effects"] if e["heads"] == "vrh" and e["k"] == max(KS))
    assert f"{effect['mcnemar']['lost']} right answers are lost" in text
    assert "With the 8 heads of two masked instead" in text
    assert "one and two (shared backbone) have" in text


def test_figures_of_every_part_are_drawn(vision):
    out, _, _ = vision
    names = {f.name for f in (out / "figures").glob("*.png")}
    for model in ("one", "two"):
        assert {f"accuracy-{model}-scenes.png", f"accuracy-{model}-questions.png"} <= names
        assert {f"failures-{model}-scenes.png", f"heads-{model}.png"} <= names
        assert f"questions-{model}.png" in names
    assert {"transfer-one-and-two-scores.png", "transfer-one-and-two-overlap.png"} <= names
    for name in names:
        with Image.open(out / "figures" / name) as image:
            pixels = np.asarray(image.convert("L"), float)
        assert pixels.std() > 10, f"{name} is blank"
        assert pixels[:, [0, -1]].min() > 200, f"{name} runs over its edge"


def test_gallery_shows_all_outcomes_by_rule(vision):
    out, _, samples = vision
    examples = load_examples(out / "gallery")
    scenes = [e for e in examples if (e.model, e.benchmark) == ("one", "scenes")]
    outcomes = [(e.before.correct, e.after.correct) for e in scenes]
    assert outcomes.count((True, False)) == 3
    by_id = {s.id: s for s in samples["scenes"]}
    for example in scenes:
        sample = by_id[example.sample_id]
        assert (example.question, example.box) == (sample.text, sample.box)
        with Image.open(out / "gallery" / example.image) as kept:
            np.testing.assert_array_equal(np.asarray(kept), np.asarray(sample.image()))
        assert example.before.box is not None
        assert example.attention is not None
    # Written again without the data, the gallery stays.
    write_report(out)
    assert load_examples(out / "gallery") == examples
    assert scenes[0].question in page(out).text + " ".join(page(out).alts)


def test_attention_of_cells_is_drawn_without_gaps_and_views_do_not_darken_each_other():
    # A thumbnail of 3 x 3 cells over tiles of 10 x 10; 100 x 70 pixels drawn at 37 x 26.
    def cells(n):
        edges = np.linspace(0, 1, n + 1)
        return [
            [x0 * 100, y0 * 70, x1 * 100, y1 * 70]
            for y0, y1 in itertools.pairwise(edges)
            for x0, x1 in itertools.pairwise(edges)
        ]

    weights = [0.1] * 9 + [0.2] * 100
    weights[4], weights[9 + 25] = 0.3, 0.4  # the middle; the tiles' third row, sixth column
    drawn = attention_picture(Attention(cells(3) + cells(10), weights), (100, 70), (26, 37))
    assert drawn.shape == (26, 37)
    assert set(np.unique(drawn).round(6)) == {0.5, 0.75, 1.0}
    middle, tile = drawn > 0.7, drawn == 1.0
    assert [middle.any(1).sum(), middle.any(0).sum()] == [11, 13]  # with the tile above it
    assert tile.nonzero()[0].min() == 5
    assert tile.nonzero()[1].min() == 18
    outside = attention_picture(
        Attention([[0, 0, 50, 70], [99.9, 0, 100, 1]], [1, 2]), (100, 70), (70, 100)
    )
    assert outside[:, 50:99].max() == 0
    assert outside[0, 99] == 1.0
    padding = [[-50, 0, -20, 70], [120, 0, 150, 70], [100, 0, 100, 70], [0, 0, 50, 70]]
    drawn = attention_picture(Attention(padding, [4, 4, 4, 2]), (100, 70), (70, 100))
    assert (drawn[:, :50] == 0.5).all()
    assert drawn[:, 50:].max() == 0


def test_a_text_study_without_effect(tmp_path):
    _, samples = write_study(tmp_path, models=("solo",), text=True, effect=0.0, n=60, draws=1)
    write_report(tmp_path, samples)
    text = page(tmp_path).text
    assert "the effect is absent or too small for this study to see" in text
    assert "one draw, no interval" in text
    assert "boxes" not in text
    assert "IoU" not in text
    assert "The same heads in two models" not in text
    assert re.search(r"The code is \d+", text), "the gallery shows what surrounds the needle"


def test_a_loss_of_format_is_called_one(tmp_path):
    write_study(tmp_path, models=("solo",), text=True, n=60, draws=2, readable=0.4)
    write_report(tmp_path)
    text = page(tmp_path).text
    assert "part of the loss is a loss of format" in text
    assert "The answers keep their form" not in text
    assert "Samples to look at" not in text


def test_what_is_printed_cannot_break_the_page(tmp_path):
    _, samples = write_study(tmp_path, models=("solo",), text=True, n=30, draws=2)
    evil = "<script>alert(1)</script>"
    index = tmp_path / "gallery" / "index.json"
    write_report(tmp_path, samples)
    raw = json.loads(index.read_text())
    raw[0]["question"] = raw[0]["before"]["text"] = evil
    index.write_text(json.dumps(raw))
    write_report(tmp_path)
    assert evil not in (tmp_path / "report.html").read_text()
    assert evil in page(tmp_path).text


def test_unreadable_images_do_not_stop_the_report(tmp_path):
    def broken():
        raise OSError("cut short")

    _, samples = write_study(tmp_path, models=("solo",), n=30, draws=1)
    bad = {b: [dataclasses.replace(s, image=broken) for s in v] for b, v in samples.items()}
    write_report(tmp_path, bad)
    assert all(e.image == "" for e in load_examples(tmp_path / "gallery"))


def test_an_unfinished_study_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"summary\.json.*not finished"):
        write_report(tmp_path)
    assert not Layout(tmp_path).summary.exists()


def test_controls_that_beat_the_chosen_heads_are_reported():
    control = {
        "draws": 20, "mean": 0.2, "min": 0.1, "max": 0.3, "effect": -0.3, "effect_low": -0.4,
        "effect_high": -0.2, "p": 1.0,
    }  # fmt: skip
    text = findings._control("random", control)
    assert "cost 30.0 points (95 % interval 20.0 to 40.0) less" in text
    assert "the least" not in text


def test_excerpt_keeps_the_needle():
    from support.synthetic_study import needles

    sample = needles(1)[0]
    short = excerpt(sample)
    assert sample.needle in short
    assert len(short) < 310
