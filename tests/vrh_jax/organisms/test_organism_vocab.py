"""The organisms' tokenizer, prompts and answers against the real parsers and processors."""

from pathlib import Path

import numpy as np
import pytest

from model_ports.port import random_params
from vrh_jax.answers import parse_box
from vrh_jax.data.organism_language import QUESTIONS, box_query, question
from vrh_jax.data.organism_scenes import draw_scene
from vrh_jax.data.sample import Sample
from vrh_jax.organisms import vocab
from vrh_jax.organisms.config import DecoderShape, VisionShape
from vrh_jax.organisms.folder import LAYOUTS, write_skeleton
from vrh_jax.organisms.sequences import answer_rows, make_item, prompt_ids
from vrh_jax.organisms.vision import CELLS, image_sequences

SHAPE = DecoderShape(layers=2, heads=4, kv_heads=2, head_dim=6, mlp_dim=16)
VISION = VisionShape(depth=2, dim=16, heads=2, mlp_dim=16)
FAMILY = {"qwen": "qwen2_5_vl", "intern": "internvl"}


@pytest.fixture(params=vocab.STYLES)
def style(request: pytest.FixtureRequest) -> vocab.Style:
    return request.param  # type: ignore[no-any-return]


def test_everything_that_is_asked_and_answered_round_trips(style: vocab.Style) -> None:
    tokenizer = vocab.build_tokenizer()
    rng = np.random.default_rng(1)
    for index in range(60):
        scene = draw_scene(2, "train", index)
        queries = [box_query(scene, rng), *(question(scene, k, rng) for k in QUESTIONS)]
        for query in queries:
            if query is None:
                continue
            item = make_item(scene, query, style)
            text = vocab.OPEN_TURN + item.prompt + vocab.CLOSE_TURN
            assert tokenizer.decode(vocab.encode(text), skip_special_tokens=False) == text
            answer = tokenizer.decode(item.answer[:-1], skip_special_tokens=False)
            if query.kind == "box":
                box = scene.things[query.target].box
                numbers = parse_box(answer, FAMILY[style])
                expected = np.array(box) * (1 if style == "qwen" else 1000 / 48)
                np.testing.assert_allclose(numbers, expected, atol=0.51)
            else:
                assert answer.strip() == query.answer


def test_unknown_words_are_named() -> None:
    with pytest.raises(ValueError, match="giraffe"):
        vocab.encode("Locate the giraffe")


def test_training_sequences_are_what_the_processor_prepares(
    tmp_path: Path, style: vocab.Style
) -> None:
    port, config = write_skeleton(tmp_path, style, SHAPE, VISION)
    processor = port.processor(tmp_path, config)
    rng = np.random.default_rng(3)
    items = []
    for index in range(6):
        scene = draw_scene(0, "train", index)
        item = make_item(scene, box_query(scene, rng), style)
        items.append(item)
        prompt = processor.prepare(item.prompt, [scene.render()], image_first=False)
        ids, first = prompt_ids(item, CELLS)
        assert prompt.tokens.tolist() == ids
        assert prompt.grid.slot.tolist() == list(range(first, first + CELLS))
        whole = prompt.extend(item.answer[:-1])
        arrays = image_sequences([item], len(whole), style)
        np.testing.assert_array_equal(arrays["tokens"][0], whole.tokens)
        np.testing.assert_array_equal(arrays["positions"][:, 0], whole.positions)
        np.testing.assert_array_equal(arrays["visual"][0], whole.visual_index)
        rows = answer_rows(len(prompt), item)
        # Row pred(i) = P + i - 1 predicts the i-th answer token.
        assert rows["rows"][0] == len(prompt) - 1
        assert processor.decode(item.answer) == vocab.box_answer(style, _box(scene, item))


def _box(scene: object, item: object) -> tuple[int, int, int, int]:
    return scene.things[item.query.target].box  # type: ignore[attr-defined,no-any-return]


def test_folders_load_like_any_checkpoint(tmp_path: Path, style: vocab.Style) -> None:
    import jax

    from model_ports.convert.export import write_params
    from model_ports.convert.load import load_model

    port, config = write_skeleton(tmp_path, style, SHAPE, VISION)
    _, params = random_params(port, config, 7)
    write_params(tmp_path, port, config, params, layout=LAYOUTS[style])
    loaded = load_model(tmp_path)
    assert loaded.port.family == FAMILY[style]
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(loaded.params), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_cells_are_eight_pixels_in_both_models(tmp_path: Path, style: vocab.Style) -> None:
    port, config = write_skeleton(tmp_path, style, SHAPE, VISION)
    processor = port.processor(tmp_path, config)
    scene = draw_scene(0, "train", 0)
    grid = processor.prepare("?", [scene.render()], image_first=False).grid
    assert grid.rect[7].tolist() == [8, 8, 16, 16]
    for thing in scene.things:
        covered = grid.cover([float(v) for v in thing.box])
        x0, y0, x1, y1 = thing.box
        columns, rows = -(-x1 // 8) - x0 // 8, -(-y1 // 8) - y0 // 8
        assert covered.sum() == columns * rows


def test_samples_are_of_the_shared_type() -> None:
    from vrh_jax.data.organism import organism_samples

    assert all(isinstance(s, Sample) for s in organism_samples("questions", "evaluation", 3))
