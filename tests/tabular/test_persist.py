"""Saving and loading a model: nothing changes on the way, nothing damaged comes through, nothing is lost."""

import copy
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stepless as sl
from stepless.tabular import persist
from stepless.tabular.models import folders
from stepless.tabular.models.folders import ModelFileError, check_place
from stepless.tabular.models.members import MEMBER_KINDS, FactoryMember
from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.persist import load_model, save_model
from stepless.tabular.tables.frames import read_table

from .fitted import TASKS, frame, make_model
from .mutations import EVIL, mutate, nodes, seal

LABELS = {
    "text": np.array(["no", "yes"]),
    "objects": np.array(["no", 'ja, früher\n"\\'], dtype=object),
    "strings": np.array(["a", "b"], dtype=np.dtypes.StringDType()),
    "bools": np.array([False, True]),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "uint64": np.array([0, 2**64 - 1], dtype=np.uint64),
    "int8": np.array([-1, 1], dtype=np.int8),
    "float64": np.array([0.1, 1 / 3]),
    "float32": np.array([0.1, 1e-45], dtype=np.float32),
    "float16": np.array([0.1, 65504], dtype=np.float16),
}


def same(a, b):
    """Whether two models say the same of every row, to the last bit."""
    table = read_table(frame(100, seed=5))
    np.testing.assert_array_equal(a.scores(table), b.scores(table))
    np.testing.assert_array_equal(a.probabilities(table), b.probabilities(table))
    np.testing.assert_array_equal(a.labels(table), b.labels(table))
    assert (a.metric, a.threshold, a.weights, a.positive) == (b.metric, b.threshold, b.weights, b.positive)
    assert (a.features, a.calibration, dict(a.versions)) == (b.features, b.calibration, dict(b.versions))


@pytest.mark.parametrize("task", TASKS)
def test_a_model_comes_back_as_it_was(task, tmp_path):
    model = make_model(task, settings={"n_members": 5, "note": ["ü", None, 0.1]})
    save_model(model, tmp_path / "deep" / "model")
    again = load_model(str(tmp_path / "deep" / "model"))
    same(model, again)
    assert again.settings == model.settings


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_keep_their_type(labels, tmp_path):
    save_model(make_model(classes=labels), tmp_path / "m")
    again = load_model(tmp_path / "m").classes
    np.testing.assert_array_equal(again, labels)
    assert again.dtype == labels.dtype


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.text(max_size=20), min_size=3, max_size=3, unique=True),
    st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3),
)
def test_any_text_and_any_number_survive(tmp_path_factory, names, offsets):
    path = tmp_path_factory.mktemp("any") / "m"
    model = make_model("multiclass", classes=np.array(names, dtype=object), threshold=tuple(offsets))
    save_model(model, path)
    again = load_model(path)
    assert again.classes.tolist() == names
    assert again.threshold == tuple(offsets)


@pytest.mark.parametrize("threshold", [math.inf, -math.inf, 5e-324, 1 / 3])
def test_every_threshold_survives(threshold, tmp_path):
    save_model(make_model(threshold=threshold), tmp_path / "m")
    assert load_model(tmp_path / "m").threshold == threshold


def test_a_model_is_the_same_bytes_wherever_it_is_saved(tmp_path):
    def files(root):
        return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    save_model(make_model(), tmp_path / "one")
    save_model(load_model(tmp_path / "one"), tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    save_model(make_model(threshold=0.75), tmp_path / "other")
    assert not {*files(tmp_path / "one")} & {p for p in files(tmp_path / "other") if p.name != "model.json"}
    save_model(make_model(), tmp_path / "two")  # over itself, its files are in use
    same(make_model(), load_model(tmp_path / "two"))
    assert len(os.listdir(tmp_path / "two")) == 2


def test_a_model_may_be_saved_over_another(tmp_path):
    save_model(make_model("multiclass"), tmp_path / "m")
    (tmp_path / "m" / "README.md").write_text("mine")
    model = make_model("multilabel")
    save_model(model, tmp_path / "m")
    same(model, load_model(tmp_path / "m"))
    kept = sorted(p.name for p in (tmp_path / "m").iterdir())
    assert len(kept) == 3  # the document, its files, and what is not ours
    assert kept[0] == "README.md"


def test_a_link_to_a_model_may_be_loaded(tmp_path):
    save_model(make_model(), tmp_path / "v1")
    (tmp_path / "latest").symlink_to(tmp_path / "v1")
    same(load_model(tmp_path / "latest"), load_model(tmp_path / "v1"))


def test_line_ends_and_indentation_do_not_matter(tmp_path):
    save_model(make_model(), tmp_path / "m")
    path = tmp_path / "m" / "model.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n\t"))
    same(load_model(tmp_path / "m"), make_model())


def test_every_kind_of_member_can_be_read():
    assert set(MEMBER_KINDS) == {"net", "factory", "lightgbm", "xgboost", "catboost"}


# ---------------------------------------------------------------------------------------------------------------------
# Nets from a factory
# ---------------------------------------------------------------------------------------------------------------------


def factory():
    return nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def factory_model():
    nets = FactoryMembers(factory, 3, seeds=(0, 1, 2))
    return make_model(members=(FactoryMember(factory, nets.tensors(), 7, 1),), weights=(1.0,))


def test_a_factorys_nets_are_saved_without_the_factory(tmp_path):
    model = factory_model()
    save_model(model, tmp_path / "m")
    same(model, load_model(tmp_path / "m", model=factory))
    with pytest.raises(ModelFileError, match=re.escape("Pass it along: load(path, model=factory).")):
        load_model(tmp_path / "m")


def test_a_factorys_nets_may_have_infinite_buffers(tmp_path):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(7, 1)
            self.register_buffer("mask", torch.full((7,), -torch.inf))

        def forward(self, x):
            return super().forward(x + self.mask.exp())

    def made(**changed):
        tensors = {**FactoryMembers(Masked, 3, seeds=(0, 1, 2)).tensors(), **changed}
        return make_model(members=(FactoryMember(Masked, tensors, 7, 1),), weights=(1.0,))

    save_model(made(), tmp_path / "m")
    same(made(), load_model(tmp_path / "m", model=Masked))
    with pytest.raises(ValueError, match=r"weights must be finite; those of 'mask' are not"):
        save_model(made(mask=torch.full((3, 7), torch.nan)), tmp_path / "m")


def test_another_factory_is_refused(tmp_path):
    save_model(factory_model(), tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"the factory's module does not fit the saved one: 0\.bias, 0\.weight, "):
        load_model(tmp_path / "m", model=lambda: nn.Linear(7, 1))
    with pytest.raises(TypeError, match="model must be the factory that made the nets; got str"):
        load_model(tmp_path / "m", model="mlp")


def test_the_nets_of_a_model_have_one_factory(tmp_path):
    model = factory_model()
    other = replace(model.members[0], factory=partial(factory))
    with pytest.raises(ValueError, match="must come from one factory; these come from 2"):
        save_model(replace(model, members=(model.members[0], other), weights=(0.5, 0.5)), tmp_path / "m")


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be saved
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"classes": np.array(["a", 1], dtype=object)},
            "labels that are all texts, all numbers or all bools; got object",
        ),
        ({"classes": np.array([b"a", b"b"])}, "got |S1 with bytes"),
        ({"classes": np.array([1.0, math.inf])}, "finite numbers alone"),
        ({"settings": {"a": (1, 2)}}, "settings must be what JSON gives back as it was"),
        ({"settings": {"a": object()}}, "Object of type object is not JSON serializable"),
        ({"settings": {1: 2, 10: 3}}, "settings must be what JSON gives back as it was"),
        ({"settings": {"a": math.nan}}, "finite numbers alone"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(changes, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        save_model(make_model(**changes), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_weights_that_diverged_are_not_saved(tmp_path):
    good = make_model()
    save_model(good, tmp_path / "m")
    tensors = {name: tensor.clone() for name, tensor in good.members[0].tensors.items()}
    tensors["biases.0"][0, 0, 0] = torch.nan
    bad = replace(good, members=(replace(good.members[0], tensors=tensors), good.members[1]))
    with pytest.raises(
        ValueError, match=r"weights must be finite; those of 'biases\.0' are not\. Did training diverge"
    ):
        save_model(bad, tmp_path / "m")
    same(good, load_model(tmp_path / "m"))


def test_what_is_not_a_models_is_not_written_over(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"a model is saved as a folder; .* is a file"):
        save_model(make_model(), tmp_path / "file")
    for name in ("notes.txt", "model.json"):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / name).write_text('{"format": "another"}')
        with pytest.raises(ValueError, match=r"holds other files than a model's\. Choose a path that is new"):
            save_model(make_model(), tmp_path / "folder")
        assert [p.name for p in (tmp_path / "folder").iterdir()] == [name]
        shutil.rmtree(tmp_path / "folder")


def test_a_place_that_cannot_be_written_to_is_known_before_the_fit(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"a model is saved as a folder; .*file is a file"):
        check_place(tmp_path / "file" / "m")
    check_place(tmp_path / "a" / "b" / "m")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    for name in ("m", "a/b/m"):
        with pytest.raises(PermissionError, match=r"a model cannot be saved in .*, which may not be written to"):
            check_place(tmp_path / name)
    (tmp_path / "m").mkdir()
    check_place(tmp_path / "m")  # its own folder is what counts


def test_a_damaged_model_may_be_saved_over(tmp_path):
    save_model(make_model(), tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text("{")
    save_model(make_model(), tmp_path / "m")
    same(make_model(), load_model(tmp_path / "m"))


def test_a_full_disk_leaves_the_old_model(tmp_path, monkeypatch):
    old = make_model()
    save_model(old, tmp_path / "m")
    calls = iter(range(100))

    def full(handle):
        if next(calls) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(make_model("multiclass"), tmp_path / "m")
    same(old, load_model(tmp_path / "m"))


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be loaded
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model of each task; not to be changed."""
    root = tmp_path_factory.mktemp("saved")
    for task in TASKS:
        save_model(make_model(task), root / task)
    save_model(factory_model(), root / "factory")
    return root


@pytest.fixture
def model_folder(saved, tmp_path):
    return Path(shutil.copytree(saved / "binary", tmp_path / "m"))


def edit(folder, change):
    """Change the document and correct the hashes."""
    path = folder / "model.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    seal(folder)


def refused(folder, message, **options):
    with pytest.raises(ModelFileError, match=re.escape(message)):
        load_model(folder, **options)


def test_what_is_no_model_is_named(tmp_path):
    refused(tmp_path / "nowhere", "a saved model is a folder with a model.json")
    refused(tmp_path / "nowhere", "does not exist")
    (tmp_path / "file").write_bytes(b"x")
    refused(tmp_path / "file", "is a file")
    refused(tmp_path, "a saved model needs model.json, which is not there")
    (tmp_path / "model.json").write_text('{"format": "onnx"}')
    refused(tmp_path, 'was not written by stepless: it does not say "format": "stepless model"')
    (tmp_path / "model.json").write_text("[]")
    refused(tmp_path, "was not written by stepless")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "truncated or damaged"),
        (b'{"format": ', "truncated or damaged"),
        (b'{"format": "stepless model", "format": "stepless model"}', "a key occurs twice in one dict"),
        (b'{"format": NaN}', "NaN is no number in JSON"),
        (b'{"format": 1e999}', "'1e999' is too large for a number"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"9" * 10_000, "truncated or damaged"),
        (b"\xff\xfe", "truncated or damaged"),
        (b" " * (2**24 + 1), "may have 16777216 bytes; it has 16777217"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_text_that_is_no_document_is_refused(text, message, tmp_path):
    (tmp_path / "model.json").write_bytes(text)
    refused(tmp_path, message)


def test_a_newer_format_says_to_upgrade(model_folder):
    edit(model_folder, lambda d: d.update(format_version=2))
    refused(
        model_folder, "has format version 2 and this stepless reads up to 1: a newer one wrote it. Upgrade: pip install"
    )


@pytest.mark.parametrize("version", [True, 0, "1", None, 1.0])
def test_a_format_version_is_a_whole_number(version, model_folder):
    edit(model_folder, lambda d: d.update(format_version=version))
    refused(model_folder, "must have a format_version of 1 or more")


def test_an_altered_document_is_found(model_folder):
    path = model_folder / "model.json"
    path.write_bytes(path.read_bytes().replace(b'"threshold": 0.4', b'"threshold": 0.5'))
    refused(model_folder, "model.json was altered after it was saved")


def test_an_altered_file_is_found(model_folder):
    (path,) = model_folder.glob("members-*/0.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(model_folder, "0.safetensors was altered or cut short")
    path.write_bytes(data[:-1])
    refused(model_folder, "0.safetensors was altered or cut short")
    path.unlink()
    refused(model_folder, "a saved model needs 0.safetensors, which is not there")
    path.mkdir()
    refused(model_folder, "must be a plain file; it is something else")
    path.rmdir()
    os.mkfifo(path)
    refused(model_folder, "must be a plain file; it is something else")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(model_folder, "must be a plain file that can be read")


def test_links_inside_are_not_followed(model_folder):
    (members,) = model_folder.glob("members-*")
    members.rename(model_folder.parent / "elsewhere")
    refused(model_folder, "is missing. Copy a saved model as a whole.")
    members.symlink_to(model_folder.parent / "elsewhere")
    refused(model_folder, "must be a folder, and no link to one")


@pytest.mark.parametrize("name", ["../model.json", "/etc/hostname", "..", "", "a/b", "0.safetensors\x00", "a" * 81])
def test_names_stay_inside_the_folder(name, model_folder):
    def rename(document):
        document["files"][name] = document["files"].pop("0.safetensors")
        document["members"][0]["file"] = name

    edit(model_folder, rename)
    with pytest.raises(ModelFileError, match=r"the name of a member's file must be|was altered after"):
        load_model(model_folder)


def test_the_members_folder_has_a_name_of_ours(model_folder):
    edit(model_folder, lambda d: d.update(folder=".."))
    with pytest.raises(ModelFileError, match=r"the members' folder must be named as in|was altered after"):
        load_model(model_folder)


def test_size_has_a_limit(model_folder):
    refused(model_folder, "may have 100 bytes and have", max_bytes=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(task="regression"), "task must be one of"),
        (lambda d: d.update(task=3), "task must be text; got 3."),
        (lambda d: d.update(positive=True), "positive must be 0, 1 or null; got True."),
        (lambda d: d.update(extra=1), "a model must have the keys"),
        (lambda d: d.update(threshold="big"), "a threshold must be a number; got 'big'."),
        (lambda d: d.update(threshold=10**400), "a threshold must be a number of ordinary size."),
        (lambda d: d.update(threshold=[0.5]), "the threshold of a binary model must be one number; got (0.5,)."),
        (lambda d: d.update(versions=[]), "versions must be a dict of texts; got []."),
        (lambda d: d.update(settings=1), "settings must be a dict; got 1."),
        (lambda d: d.update(members={}), "members must be a list; got {}."),
        (lambda d: d.update(members=[]), "belongs to no member"),
        (lambda d: d["members"].append(1), "member 2 must be a dict that says its kind; got 1."),
        (
            lambda d: d["members"][0].update(kind="pickle"),
            "member 0 must be of one of the kinds net, factory, lightgbm, xgboost, catboost; got 'pickle'",
        ),
        (lambda d: d["members"][0].update(weight="1"), "a member's weight must be a number; got '1'."),
        (lambda d: d["members"][0].update(weight=0.9), "the members' weights must be at least 0 and sum to 1"),
        (lambda d: d["members"][0].update(file="1.safetensors"), "must be one of its own, 0.safetensors"),
        (lambda d: d["members"][0].update(code="x"), "a net's entry must have the keys architecture, file"),
        (lambda d: d["members"][0]["architecture"].update(hidden=[10**12]), "tensors of the shapes"),
        (lambda d: d["members"][0]["architecture"].update(inputs=-1), "inputs must be a whole number above 0"),
        (lambda d: d["classes"].update(type="pickle"), "labels must be of one of the types bool, int8"),
        (lambda d: d["classes"].update(values=["a", 1]), "must be str; got '1'."),
        (lambda d: d["classes"].update(type="int8", values=[0, 300]), "labels of type int8 must lie in [-128, 127]."),
        (lambda d: d["classes"].update(values=["a", "a"]), "classes must be distinct"),
        (lambda d: d["calibration"].update(kind="pickle"), "a calibration must be"),
        (lambda d: d["features"]["columns"].pop(), "holds no model that works"),
        (lambda d: d["features"]["columns"][0].update(scale=0), "scale"),
    ],
)
def test_behind_correct_hashes_every_value_is_checked(change, message, model_folder):
    edit(model_folder, change)
    refused(model_folder, message)


def test_parts_of_different_models_do_not_mix(saved, model_folder):
    calibration = json.loads((saved / "multilabel" / "model.json").read_bytes())["calibration"]
    edit(model_folder, lambda d: d.update(calibration=calibration))
    refused(model_folder, "holds no model that works")


# ---------------------------------------------------------------------------------------------------------------------
# Damage at random
# ---------------------------------------------------------------------------------------------------------------------

FORBIDDEN = {
    "exec", "compile", "import", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
    "pickle.find_class", "marshal.loads", "socket.connect", "ctypes.dlopen", "os.remove", "os.rename",
}  # fmt: skip
watched: list[Path] = []  # the folder that is being loaded, while it is
seen: list[str] = []


def watch(event, args):
    if not watched:
        return
    # opening a file by its handle is reading what was opened by name before
    outside = event == "open" and not isinstance(args[0], int) and watched[0] not in Path(os.fsdecode(args[0])).parents
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event in FORBIDDEN or outside or writes:
        seen.append(f"{event} {args}"[:200])


@contextmanager
def only_reading(folder, seconds):
    """Fail if what is inside runs code, leaves the folder, or takes longer."""

    def late(*_):
        raise AssertionError(f"loading took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    watched.append(folder)
    try:
        yield
    finally:
        watched.clear()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not seen, seen


def fuzz(saved, tmp_path, first, count):
    """Load ``count`` damaged models; return how many were refused, and how many were whole after all."""
    sys.addaudithook(watch)
    table = read_table(frame(20))
    for task in (*TASKS, "factory"):
        load_model(saved / task, model=factory).labels(table)  # what torch imports late is imported now
    refusals = loaded = 0
    for seed in range(first, first + count):
        rng = random.Random(seed)
        task = rng.choice((*TASKS, "factory"))
        folder = Path(shutil.copytree(saved / task, tmp_path / "case" / "m"))
        done = mutate(folder, rng, saved / rng.choice(TASKS))
        try:
            with only_reading(folder, 20):
                model = load_model(folder, model=factory)
        except ModelFileError as error:
            refusals += 1
            if not 20 < len(str(error)) < 2000:
                raise AssertionError(f"case {seed} ({task}: {done}) is refused without a sentence") from error
        except BaseException as error:
            raise AssertionError(f"case {seed} ({task}: {done}) got out") from error
        else:
            loaded += 1
            use(model, seed, done)
        shutil.rmtree(tmp_path / "case")
    return refusals, loaded


def use(model, seed, done):
    """A model that was loaded works, or says in our words why a table does not fit it."""
    names = model.features.names
    columns = frame(20)
    table = read_table(columns if names == tuple(columns) else columns.to_numpy())
    try:
        p, labels = model.probabilities(table), model.labels(table)
    except ValueError:
        return
    except BaseException as error:
        raise AssertionError(f"case {seed} ({done}) loads and then fails") from error
    assert len(p) == len(labels) == 20
    assert ((p >= 0) & (p <= 1)).all(), (seed, done)


def test_damage_is_found(saved, tmp_path):
    refusals, loaded = fuzz(saved, tmp_path, 0, 300)
    assert refusals > 200
    assert loaded > 5  # a weight or a threshold that is another number, with correct hashes


@pytest.mark.full
def test_much_damage_is_found(saved, tmp_path):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusals, loaded = fuzz(saved, tmp_path, 10_000, 6000)
    print(f"refused {refusals}, loaded {loaded}")
    assert refusals + loaded == 6000
    assert refusals > 4000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024


def test_the_watch_sees_what_it_forbids(saved):
    sys.addaudithook(watch)
    for act in (lambda: eval("1"), lambda: Path("/dev/null").read_bytes(), lambda: os.system("")):
        with pytest.raises(AssertionError, match=r"open|exec|compile|os\.system"), only_reading(saved, 20):
            act()
        seen.clear()


@pytest.mark.full
@pytest.mark.parametrize("task", [*TASKS, "factory"])
def test_every_value_of_the_document_in_turn_may_be_anything(task):
    document, files = persist._encode(factory_model() if task == "factory" else make_model(task))
    document = folders.from_text(folders.to_text(document, files, "members-00000000"))
    for way in [p for p in nodes(document) if p and p[0] in persist._KEYS]:
        for evil in EVIL:
            changed = copy.deepcopy(document)
            parent = changed
            for step in way[:-1]:
                parent = parent[step]
            parent[way[-1]] = evil
            try:
                model = persist._decode(changed, files, factory)
            except ValueError:
                continue
            use(model, way, evil)


def test_without_correct_hashes_every_change_of_a_byte_is_found(saved, tmp_path):
    folder = Path(shutil.copytree(saved / "binary", tmp_path / "m"))
    rng = random.Random(0)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        for at in rng.sample(range(len(whole)), 60):
            data = bytearray(whole)
            data[at] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            try:
                same(load_model(folder), make_model())  # a space for a line end is no change
            except ModelFileError:
                continue
        path.write_bytes(whole)


# ---------------------------------------------------------------------------------------------------------------------
# Interrupted and simultaneous saves
# ---------------------------------------------------------------------------------------------------------------------

SAVER = """
    import sys
    sys.path.insert(0, {tests!r})
    from fitted import make_model
    from stepless.tabular.persist import save_model

    models = [make_model(threshold=0.25, sizes=(40,)), make_model(threshold=0.75, sizes=(60,))]
    print("ready", flush=True)
    for i in range({times}):
        save_model(models[i % 2], {path!r})
"""


def saver(path, times):
    code = textwrap.dedent(SAVER).format(tests=str(Path(__file__).parent), path=str(path), times=times)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def whole(path):
    """The threshold of the model in a folder, which must be whole, with the members that belong to it."""
    model = load_model(path)
    assert {0.25: 40, 0.75: 60, 0.5: 50}[model.threshold] == model.members[0].n
    return model.threshold


def kill_while_saving(path, moments):
    found = set()
    for moment in moments:
        save_model(make_model(threshold=0.5, sizes=(50,)), path)
        process = saver(path, 10**6)
        time.sleep(moment)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        found.add(whole(path))
    return found


@pytest.mark.full
def test_kills_at_random_moments_leave_a_whole_model(tmp_path):
    rng = random.Random(0)
    found = kill_while_saving(tmp_path / "m", [rng.uniform(0, 0.1) for _ in range(20)])
    assert found >= {0.25, 0.75}  # they came at different stages


def test_a_kill_at_every_step_of_a_save_leaves_the_old_or_the_new_model(tmp_path):
    """A process that ends just before each thing a save asks of the system, in turn."""
    code = textwrap.dedent(
        """
        import os, signal, sys
        sys.path.insert(0, {tests!r})
        from fitted import make_model
        from stepless.tabular.persist import save_model

        model, left = make_model(threshold=0.75, sizes=(60,)), [0]
        names = ("open", "mkdir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.listdir")

        def count(event, args):
            if event in names and left[0] > 0:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        for step in range(1, 1000):
            if (child := os.fork()) == 0:
                left[0] = step
                save_model(model, {path!r})
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(status, flush=True)
            sys.stdin.readline()
            if status == 0:
                break
        """
    ).format(tests=str(Path(__file__).parent), path=str(tmp_path / "m"))
    old = make_model(threshold=0.5, sizes=(50,))
    save_model(old, tmp_path / "m")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found = []
    while (status := int(process.stdout.readline())) == signal.SIGKILL:
        found.append(whole(tmp_path / "m"))
        save_model(old, tmp_path / "m")
        process.stdin.write("\n")
        process.stdin.flush()
    process.communicate("\n")
    assert status == 0
    assert len(found) > 10
    assert set(found) == {0.5, 0.75}
    assert found == sorted(found)  # the old one, and from one step on the new one


def test_what_interrupted_saves_left_is_removed_later(tmp_path):
    path = tmp_path / "m"
    save_model(make_model(), path)
    (path / "members-0123abcd").mkdir()
    (path / "members-0123abcd" / "0.safetensors").write_bytes(b"half")
    (path / "model.json-0123abcd.tmp").write_bytes(b"{")
    save_model(make_model(), path)
    assert len(os.listdir(path)) == 4  # another process may still be at work
    for name in ("members-0123abcd", "model.json-0123abcd.tmp"):
        os.utime(path / name, (0, 0))
    save_model(make_model(), path)
    assert len(os.listdir(path)) == 2


def test_a_first_save_that_was_interrupted_may_be_repeated(tmp_path):
    path = tmp_path / "m"
    (path / "members-0123abcd").mkdir(parents=True)
    (path / "model.json-0123abcd.tmp").write_bytes(b"{")
    refused(path, "a saved model needs model.json, which is not there")
    save_model(make_model(), path)
    same(make_model(), load_model(path))


def test_several_processes_may_save_while_others_load(tmp_path):
    path = tmp_path / "m"
    save_model(make_model(threshold=0.5, sizes=(50,)), path)
    savers = [saver(path, 10) for _ in range(2)]
    loads = 0
    while any(process.poll() is None for process in savers):
        whole(path)
        loads += 1
    assert [process.wait() for process in savers] == [0, 0]
    assert loads > 3
    assert whole(path) in {0.25, 0.75}


# ---------------------------------------------------------------------------------------------------------------------
# The parameters of estimators
# ---------------------------------------------------------------------------------------------------------------------

OPTIONS = {
    "array": ("cost", {"costs": np.array([[0, 1, 4], [1, 0, 1], [4, 1, 0]]) / 3}),
    "nan": ("precision", {"zero_division": math.nan}),
    "numpy nan": ("precision", {"zero_division": np.float32("nan")}),
}


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    return X, np.digitize(X[:, 0] + 0.5 * rng.normal(size=200), [-0.5, 0.5])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tuned", [False, True])
def test_a_loaded_model_scores_the_same_metric(three, options, tuned, tmp_path):
    X, y = three
    metric, given = OPTIONS[options]
    model = sl.MetricClassifier(
        metric, metric_options=given, candidates=("cross_entropy",), n_members=2, epochs=3, random_state=0
    )
    model = sl.TunedThreshold(model, metric, metric_options=given, cv=2) if tuned else model
    model.fit(X, y).save(tmp_path / "model")
    again = sl.load(tmp_path / "model")
    assert again.score(X, y) == model.score(X, y)
    (before,), (after,) = given.values(), again.metric_options.values()
    np.testing.assert_array_equal(before, after)
    json.loads((tmp_path / "model/model.json").read_text(), parse_constant=pytest.fail)
    again.save(tmp_path / "again")
    assert sl.load(tmp_path / "again").score(X, y) == model.score(X, y)


def test_parameters_that_cannot_be_saved_are_not_lost_without_a_word(three, tmp_path):
    X, y = three
    model = sl.MetricBooster(n_estimators=3, n_members=2, random_state=np.random.RandomState(0)).fit(X, y)
    with pytest.warns(
        UserWarning, match=r"keeps parameters that JSON can hold; not kept: random_state \(RandomState\)"
    ):
        model.save(tmp_path / "model")
    assert sl.load(tmp_path / "model").random_state is None
    model.set_params(random_state=0, metric_options={"beta": 1j})
    with pytest.raises(
        ValueError, match=r"metric_options that are numbers, .* got {'beta': 1j}. Without them it would"
    ):
        model.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_parameters_that_we_did_not_write_are_refused(tmp_path):
    model, deep = make_model("binary"), []
    for _ in range(600):
        deep = [deep]
    estimator = sl.MetricClassifier.from_model(replace(model, settings={"params": {"metric_options": {"$float": []}}}))
    assert estimator.metric_options == {"$float": []}
    with pytest.raises(ValueError, match="nested too deeply"):
        sl.MetricClassifier.from_model(replace(model, settings={"params": {"metric_options": deep}}))
