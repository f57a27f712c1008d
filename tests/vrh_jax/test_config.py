"""Study settings: what is refused, and how the message helps."""

import copy
from pathlib import Path

import pytest

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig, load_config
from vrh_jax.strict import parse_settings
from vrh_jax.study.layout import Layout
from vrh_jax.study.state import open_state

GOOD = {
    "name": "s",
    "models": [{"name": "m", "source": "folder"}, {"name": "o", "source": "folder"}],
    "benchmarks": {"b": {"task": "jsonl"}, "q": {"task": "jsonl"}},
    "detection": {"benchmark": "b", "samples": 3},
    "evaluation": [{"benchmark": "b", "samples": 4}],
    "transfer": {"pairs": [{"models": ["m", "o"]}]},
}


def parse(**changes):
    return parse_settings(StudyConfig, {**copy.deepcopy(GOOD), **changes}, "study.yaml")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"modles": []}, r"unknown key 'modles'; did you mean 'models'\?"),
        ({"controls": {"drawz": 3}}, r"controls: unknown key 'drawz'; did you mean 'draws'\?"),
        ({"models": [{"name": "m", "source": "x", "dtyp": 1}]}, r"models.0: .*'dtype'"),
        ({"scoring": {"rows": "prediction"}}, r"scoring.rows: .*'pred' or 'own'"),
        ({"ks": [0]}, r"ks.0: .*greater than 0"),
        ({"detection": {"benchmark": "bb", "samples": 3}}, r"'bb' is not there; did you mean 'b'"),
        ({"models": [{"name": "m", "source": "x"}] * 2}, "two models are called 'm'"),
        ({"transfer": {"pairs": [{"models": ["m", "oo"]}]}}, "transfer.pairs: 'oo'"),
        ({"transfer": {"pairs": [{"models": ["m", "m"]}]}}, "paired with itself"),
        ({"transfer": {"pairs": [{"models": ["m", "o"]}], "benchmarks": ["q"]}}, "'q'"),
        ({"mesh": {"data": 3}}, "batch.generate = 32 does not divide over mesh.data = 3"),
        ({"ks": [2, 4, 2]}, "ks: 2 is there twice"),
        ({"evaluation": [{"benchmark": "b", "samples": 1, "ks": [3, 3]}]}, "ks of b: 3 is there"),
        ({"evaluation": [{"benchmark": "b", "samples": 1}] * 2}, "lists benchmark 'b' twice"),
        ({"controls": {"draws_at": {7: 3}}}, "draws_at: no benchmark masks 7 heads"),
        ({"models": [{"name": "../m", "source": "x"}]}, r"models.0.name"),
    ],
)
def test_bad_settings_are_named(changes, expected):
    with pytest.raises(UserError, match=expected) as error:
        parse(**changes)
    assert "study.yaml" in str(error.value)


def test_several_problems_are_told_together():
    with pytest.raises(UserError) as error:
        parse(ks=[-1], controls={"seeds": 1})
    assert len(str(error.value).splitlines()) == 2


def test_hash_covers_results_and_not_execution():
    base = parse().hash()
    assert base == parse(out="elsewhere", batch={"generate": 4}, mesh={"data": 2}).hash()
    changed = [
        parse(ks=[1]),
        parse(controls={"seed": 1}),
        parse(scoring={"rows": "own"}),
        parse(split_seed=1),
        parse(models=[{**GOOD["models"][0], "dtype": "bfloat16"}, GOOD["models"][1]]),
    ]
    assert len({base, *(c.hash() for c in changed)}) == 6


def test_every_setting_is_documented():
    seen = set()

    def walk(cls):
        for name, field in cls.model_fields.items():
            for part in [field.annotation, *getattr(field.annotation, "__args__", ())]:
                if isinstance(part, type) and issubclass(part, StudyConfig.__mro__[1]):
                    walk(part)
            documented = field.description or "Settings" in str(field.annotation)
            assert documented, f"{cls.__name__}.{name} has no description"
            seen.add(name)

    walk(StudyConfig)
    assert {"draws", "ks", "method"} <= seen


def test_files(tmp_path: Path):
    path = tmp_path / "s.yaml"
    with pytest.raises(UserError, match="no such file"):
        load_config(path)
    path.write_text("- a\n- b\n")
    with pytest.raises(UserError, match="expected a mapping"):
        load_config(path)
    path.write_text("name: a\nname: b\n")
    with pytest.raises(UserError, match="'name' is given twice"):
        load_config(path)
    path.write_text("name: [\n")
    with pytest.raises(UserError, match="cannot be read as YAML"):
        load_config(path)


def test_draws_per_size():
    config = parse(
        controls={"draws": 2, "draws_at": {10: 9}},
        evaluation=[{"benchmark": "b", "samples": 4}, {"benchmark": "q", "samples": 4, "draws": 1,
                                                       "ks": [3]}],
    )  # fmt: skip
    first, second = config.evaluation
    assert [config.draws(first, k) for k in config.sizes(first)] == [2, 9, 2]
    assert [config.draws(second, k) for k in config.sizes(second)] == [1]
    assert config.all_sizes == (3, 5, 10, 20)


def test_another_study_in_the_folder_is_told_in_a_few_words(tmp_path):
    layout = Layout(tmp_path)
    open_state(parse(), layout).save(layout)
    with pytest.raises(UserError, match=r"other settings \(ks: .* -> \[2\]\)\. Use another --out"):
        open_state(parse(ks=[2]), layout)
    other = parse(
        name="t",
        ks=list(range(1, 200)),
        models=[{"name": n, "source": "folder"} for n in "mnop"],
        controls={"draws": 7},
        split_seed=9,
        scoring={"rows": "own", "method": "retrieval"},
    )
    with pytest.raises(UserError) as refused:
        open_state(other, layout)
    assert "controls.draws: 5 -> 7; " in str(refused.value)
    assert "and 1 more)" in str(refused.value)
    assert len(str(refused.value)) < 1300
