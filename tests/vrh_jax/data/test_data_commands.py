"""`vrh data check`, `vrh data get` and `vrh data list`."""

import hashlib
import http.server
import json
import threading
from types import SimpleNamespace

import pytest
from PIL import Image
from support import refcoco as files

from model_ports.errors import UserError
from vrh_jax.cli import main
from vrh_jax.data import get as getting
from vrh_jax.data import get_images
from vrh_jax.data.check import matches
from vrh_jax.data.registry import task_names


def run(capsys, *arguments):
    status = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def check(capsys, *arguments):
    status, out, err = run(capsys, "data", "check", *arguments, "--json")
    assert status == 0, err
    return json.loads(out)["benchmarks"]


@pytest.fixture
def dataset(tmp_path):
    files.write_official(tmp_path / "refcoco+")
    files.write_images(tmp_path / "refcoco+", skip=[12])
    return tmp_path / "refcoco+"


def test_a_folder_is_recognised_and_counted(dataset, capsys):
    found = check(capsys, dataset)
    assert {r["task"] for r in found} == {"refcocoplus"}
    assert sorted(r["split"] for r in found) == ["testA", "train", "val", "val"]
    unc = next(r for r in found if r["split"] == "val" and "unc" in r["options"]["path"])
    assert (unc["samples"], unc["refs"], unc["images"], unc["distinct_boxes"]) == (5, 3, 2, 3)
    assert unc["image_files"]["missing"] == 1
    assert unc["image_files"]["examples"]["missing"].endswith("COCO_train2014_000000000012.jpg")
    assert unc["matches"] == []
    status, out, _ = run(capsys, "data", "check", dataset)
    assert status == 0
    assert "5 sentences, 3 refs" in out
    assert "missing 1" in out


def test_images_are_checked_against_their_annotation(dataset, tmp_path, capsys):
    images = tmp_path / "images"
    files.write_images(images)
    Image.new("RGB", (64, 49)).save(images / files.file_name(11))
    whole = (images / files.file_name(12)).read_bytes()
    (images / files.file_name(12)).write_bytes(whole[:-30])
    arguments = (dataset / "refs(unc).p", "--images", images)
    val = next(r for r in check(capsys, *arguments) if r["split"] == "val")
    assert val["image_files"]["another_size"] == 1
    assert val["image_files"]["unreadable"] == 0
    val = next(r for r in check(capsys, *arguments, "--decode") if r["split"] == "val")
    assert val["image_files"]["unreadable"] == 1
    assert val["image_files"]["good"] == 0


def test_a_named_task_with_options_and_a_study(dataset, tmp_path, capsys):
    (found,) = check(
        capsys, dataset, "--task", "refcoco", "-o", "split=val", "-o", "per=ref",
        "-o", "partitions=[unc, google]",
    )  # fmt: skip
    assert (found["samples"], found["refs"]) == (5, 5)
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\nmodels: [{name: m, source: x}]\n"
        f"benchmarks:\n  a: {{task: refcocoplus, options: {{path: {dataset}}}}}\n"
        "  b: {task: organism, options: {task: count}}\n"
        "detection: {benchmark: a}\n"
    )
    first, second = check(capsys, study)
    assert (first["name"], first["samples"]) == ("a", 5)
    assert (second["name"], second["generated"]) == ("b", True)
    assert second["image_files"]["good"] == second["images"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no such file or folder"),
        ([], "give the path"),
        (["--task", "refcocco"], "did you mean 'refcoco"),
        (["--task", "refcoco", "-o", "path"], "expected KEY=VALUE"),
        (["--task", "toloka", "-o", "pth=x"], "unknown key 'pth'"),
    ],
)
def test_what_cannot_be_checked_is_named(arguments, message, capsys):
    status, _, err = run(capsys, "data", "check", *arguments)
    assert status == 2
    assert message in err


def test_parquet_is_recognised_by_the_nearest_name(tmp_path, capsys):
    images = tmp_path / "refcocog" / "train2014"
    files.write_images(images)
    hub = tmp_path / "refcocog" / "RefCOCO"
    files.write_parquet(hub / "data", images)
    (found,) = check(capsys, hub)
    assert (found["task"], found["split"], found["samples"]) == ("refcoco", "val", 5)
    assert found["image_files"]["good"] == 2
    assert check(capsys, tmp_path)[0]["sentences"] == 5  # looked for in subfolders
    (one,) = check(capsys, hub / "data" / "val-00000-of-00002.parquet")
    assert (one["task"], one["samples"]) == ("refcoco", 3)


def test_unrecognised_files_are_named(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    status, _, err = run(capsys, "data", "check", tmp_path)
    assert status == 2
    assert "--task" in err


def test_rows_without_a_target_are_counted(tmp_path, capsys):
    folder = tmp_path / "Location"
    for part in ("image", "mask"):
        (folder / part).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (5, 5), i if part == "mask" else 9).save(folder / part / f"{i}.png")
    rows = [{"id": i, "object": "o", "prompt": "p"} for i in range(2)]
    (folder / "question.json").write_text(json.dumps(rows))
    (found,) = check(capsys, tmp_path)
    assert (found["task"], found["samples"], found["unusable"]) == ("refspatial", 1, 1)
    assert "no pixel above 0" in found["examples"]["unusable"]


def test_matching_needs_every_unit_and_the_split():
    counts = {"samples": 10834, "sentences": 10834, "refs": 3811, "images": 1500}
    assert matches("refcoco", "val", counts) == [
        "10,834 sentences, 3,811 refs, 1,500 images: UNC val"
    ]
    assert matches("refcoco", "testA", counts) == []
    assert matches("refcoco", "val", {**counts, "images": 1499}) == []
    merged = {"samples": 8811, "sentences": 8811, "refs": 8811}
    assert "the paper" in matches("refcoco", "val", merged)[0]
    assert matches("jsonl", "", counts) == []


def test_every_task_is_listed(capsys):
    status, out, _ = run(capsys, "data", "list", "--json")
    assert status == 0
    listed = json.loads(out)
    assert sorted(listed) == task_names()
    assert "folder" in listed["refcoco"]["images"]
    for name, options in listed.items():
        assert all(options.values()), name


def test_offline_says_what_to_place_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, recipe in getting.recipes().items():
        out = tmp_path / name
        status, text, err = run(capsys, "data", "get", name, "--out", out)
        if not recipe.repo and not recipe.urls:  # nothing but instructions
            assert (status, str(out) in text) == (0, True)
            continue
        assert status == 2, name
        for pattern in recipe.patterns:
            assert str(out / pattern) in err
        assert recipe.usage(out) in err
        assert not out.exists()
    status, _, err = run(capsys, "data", "get", "refcocos")
    assert status == 2
    assert "did you mean 'refcoco" in err


def test_every_recipe_is_of_a_task():
    assert set(getting.recipes()) <= set(task_names())
    for recipe in getting.recipes().values():
        assert recipe.licence
        assert recipe.option


class Ranged(http.server.SimpleHTTPRequestHandler):
    """Serves files, continuing where a client asks; counts bytes sent."""

    sent = 0

    def do_GET(self):
        file = self.server.folder / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        data = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        type(self).sent += len(data) - start
        self.wfile.write(data[start : self.server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranged)
    served.folder, served.cut = tmp_path / "served", None
    served.folder.mkdir()
    Ranged.sent = 0
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


DATA = bytes(range(256)) * 500


@pytest.fixture
def recipe(server, monkeypatch):
    (server.folder / "f.csv").write_bytes(DATA)
    entry = {
        "url": f"http://127.0.0.1:{server.server_address[1]}/f.csv",
        "file": "f.csv",
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
    made = getting.Recipe("x", "MIT", "", (), (entry,), ("place y in {out}/y",), "path: {out}")
    monkeypatch.setattr(getting, "recipes", lambda: {"x": made})
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return entry


def quiet(name, out, **options):
    return getting.get(name, out, say=lambda line: None, **options)


def test_files_are_fetched_once_and_verified(recipe, server, tmp_path):
    out = tmp_path / "out"
    done = quiet("x", out)
    assert (out / "f.csv").read_bytes() == DATA
    assert done["fetched"] == ["f.csv"]
    assert done["manual"] == [f"place y in {out}/y"]
    assert json.loads((out / getting.RECORD).read_text())["files"] == {"f.csv": recipe["sha256"]}
    assert quiet("x", out)["fetched"] == []
    assert Ranged.sent == len(DATA)
    (out / "f.csv").write_bytes(DATA[:-1] + b"!")  # damaged later
    assert quiet("x", out)["fetched"] == ["f.csv"]
    assert (out / "f.csv").read_bytes() == DATA


def test_an_interrupted_download_continues(recipe, server, tmp_path):
    out = tmp_path / "out"
    server.cut = 70_000
    with pytest.raises(UserError, match="run again to continue"):
        quiet("x", out)
    assert not (out / "f.csv").exists()
    assert (out / "f.csv.part").stat().st_size == 70_000
    server.cut, Ranged.sent = None, 0
    quiet("x", out)
    assert (out / "f.csv").read_bytes() == DATA
    assert Ranged.sent == len(DATA) - 70_000
    (out / "f.csv").replace(out / "f.csv.part")  # stopped before it was renamed
    quiet("x", out)
    assert (out / "f.csv").read_bytes() == DATA


def test_another_file_is_not_kept(recipe, server, tmp_path):
    (server.folder / "f.csv").write_bytes(b"another")
    with pytest.raises(UserError, match="expected " + recipe["sha256"]):
        quiet("x", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_images_are_fetched_one_by_one(dataset, server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(get_images, "ADDRESS", f"http://127.0.0.1:{server.server_address[1]}")
    files.write_images(server.folder / "train2014", skip=[13])
    Image.new("RGB", (9, 9)).save(server.folder / "train2014" / files.file_name(14))
    images = tmp_path / "images"
    arguments = ("data", "images", dataset / "refs(unc).p", "--images", images, "--json")
    status, out, err = run(capsys, *arguments)
    done = json.loads(out)
    assert status == 1
    assert "4 images are missing" in err
    assert done["fetched"] == 2
    assert sorted(p.name for p in images.iterdir()) == [files.file_name(11), files.file_name(12)]
    reasons = {name[-6:-4]: reason for name, reason in done["failed"].items()}
    assert "404" in reasons["13"]
    assert "annotated (64, 48)" in reasons["14"]
    files.write_images(server.folder / "train2014")
    status, out, _ = run(capsys, *arguments)
    assert (status, json.loads(out)) == (0, {"fetched": 2, "failed": {}})
    status, out, _ = run(capsys, *arguments)
    assert (status, json.loads(out)) == (0, {"fetched": 0, "failed": {}})


def test_images_offline_are_one_error(dataset, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(get_images, "ADDRESS", "http://127.0.0.1:9")
    status, _, err = run(capsys, "data", "images", dataset, "--images", tmp_path / "none")
    assert status == 2
    assert "train2014.zip" in err


def test_addresses_of_images():
    assert get_images.addresses("COCO_val2014_000000000042.jpg") == [
        "http://images.cocodataset.org/val2014/COCO_val2014_000000000042.jpg"
    ]
    assert len(get_images.addresses("000000000042.jpg")) == 4
    assert get_images.addresses("2415.jpg") == []


class Hub:
    """A dataset repository with one large file and one small one, at a commit that moves."""

    def __init__(self, monkeypatch):
        self.files = {"data/val-00000-of-00001.parquet": b"large" * 9, "q.json": b"[]",
                      "README.md": b"x"}  # fmt: skip
        self.commit, self.fetched, self.damage = "c1", [], False
        made = getting.Recipe("x", "MIT", "o/x", ("data/val-*", "q.json"), (), (), "path: {out}")
        monkeypatch.setattr(getting, "recipes", lambda: {"x": made})
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", self.download)

    def dataset_info(self, repo, *, revision, files_metadata, timeout):
        blob = {n: hashlib.sha1(b"blob %d\0" % len(d) + d).hexdigest()
                for n, d in self.files.items()}  # fmt: skip
        siblings = [
            SimpleNamespace(
                rfilename=name, size=len(data), blob_id=blob[name],
                lfs=SimpleNamespace(sha256=hashlib.sha256(data).hexdigest())
                if name.endswith("parquet") else None,
            )
            for name, data in self.files.items()
        ]  # fmt: skip
        self.asked = revision
        return SimpleNamespace(sha=self.commit, siblings=siblings)

    def download(self, repo, name, *, repo_type, revision, local_dir):
        assert (repo, repo_type, revision) == ("o/x", "dataset", self.commit)
        self.fetched.append(name)
        path = local_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files[name] + (b"!" if self.damage else b""))


def test_files_of_the_hub(tmp_path, monkeypatch):
    hub, out = Hub(monkeypatch), tmp_path / "out"
    quiet("x", out, only=["q.json"])
    assert (hub.asked, hub.fetched) == ("main", ["q.json"])
    done = quiet("x", out)
    assert hub.asked == "c1"  # files of two commits do not mix
    assert hub.fetched == ["q.json", "data/val-00000-of-00001.parquet"]
    assert sorted(done["files"]) == ["data/val-00000-of-00001.parquet", "q.json"]
    (out / "q.json").write_bytes(b"{}")
    quiet("x", out)
    assert hub.fetched[2:] == ["q.json"]
    (out / "q.json").unlink()
    hub.damage = True
    with pytest.raises(UserError, match="does not have the checksum"):
        quiet("x", out)
    assert not (out / "q.json").exists()
    hub.files = {"README.md": b""}
    with pytest.raises(UserError, match=r"none of data/val-\*, q\.json any more"):
        quiet("x", tmp_path / "other")


def test_a_full_disk_is_not_called_offline(tmp_path, monkeypatch):
    hub = Hub(monkeypatch)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(UserError, match="No space left") as error:
        quiet("x", tmp_path / "out")
    assert "place these files" not in str(error.value)
    assert hub.fetched == []
