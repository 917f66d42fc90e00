"""The commands as a newcomer meets them: examples that run, sentences for what is wrong, runs that are stopped."""

import csv
import gzip
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet as pq
from rich.console import Console
from typer.main import get_command

import stepless as sl
from stepless.tabular.cli import CONTESTANTS, app
from stepless.tabular.commands.console import grid
from stepless.tabular.comparing import contestants

from .cli_runs import QUICK, run, write_table

COMMANDS = get_command(app).commands
EXAMPLES = [
    line for command in COMMANDS.values() for line in command.epilog.split("\n\n") if line.startswith("stepless ")
]
#: What takes the time of a real comparison.
SLOW = {
    "stepless demo",
    "stepless compare data.csv --target y --metric f1",
    'stepless compare data.csv --target y --metric recall --subject-to "precision >= 0.5" --only metric --repeats 1',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as the examples assume it."""
    folder = tmp_path_factory.mktemp("place")
    write_table(folder / "data.csv")
    write_table(folder / "new-rows.csv", 30, seed=1)
    random = np.random.default_rng(0)
    y = random.random(200) < 0.3
    scores = "".join(f"{s:.3f},{int(t)}\n" for s, t in zip(random.normal(y * 2.0), y, strict=True))
    (folder / "scores.csv").write_text("score,y\n" + scores)
    return folder


@pytest.fixture(autouse=True)
def inside(place, monkeypatch):
    monkeypatch.chdir(place)


def good(line, stdin=None):
    result = run(line, stdin)
    assert result.exit_code == 0, result.output
    return result


def bad(line, code=2, stdin=None):
    result = run(line, stdin)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("line", [pytest.param(e, marks=pytest.mark.full) if e in SLOW else e for e in EXAMPLES])
def test_the_examples_of_the_help_run(line):
    command, _, out = line.removeprefix("stepless ").partition(" > ")
    # the answer does not depend on it, and processes take longer to start than so small a table to compare
    result = good(f"{command} --jobs 1" if command.startswith("compare") else command)
    if out:
        assert result.stdout.startswith("id,probability,decision,label\n")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_and_an_example(name):
    result = good(f"{name} --help")
    assert "Examples" in result.stdout
    assert f"stepless {name}" in result.stdout


def test_compare_writes_a_folder_and_says_the_verdict():
    result = good(f"compare data.csv --target y --drop id {QUICK} --out first --json")
    answer = json.loads(result.stdout)
    assert [row["key"] for row in answer["table"]]
    assert answer["verdict"].startswith(("yes", "no", "cannot tell"))
    assert os.path.exists(answer["report"])
    assert os.path.exists("first/cells")
    shown = good(f"compare data.csv --target y --drop id {QUICK} --out first")
    assert answer["verdict"] in " ".join(shown.stdout.split())
    assert "first/report.html" in shown.stdout
    assert "age     number" in shown.stderr
    assert "city    category" in shown.stderr


def test_compare_says_which_class_and_which_options_the_score_is_of():
    options = "--metric f_beta --option beta=2"
    answer = json.loads(good(f"compare data.csv --target y --drop id {QUICK} {options} --out f2 --json").stdout)
    assert answer["metric_options"] == {"beta": 2}
    assert answer["average"] is None
    assert f"The positive class is {answer['positive']!r}" in answer["verdict"]
    shown = good(f"compare data.csv --target y --drop id {QUICK} {options} --out f2").stdout
    assert "beta=2" in " ".join(shown.split())


def test_train_is_for_the_class_that_was_compared(place):
    """Of other rows the other class may be the rarer one."""
    rows = [f"{i % 7},{'a' if i % 3 else 'b'}" for i in range(90)]
    (place / "before.csv").write_text("x,y\n" + "\n".join(rows))
    (place / "after.csv").write_text("x,y\n" + "\n".join(row.translate(str.maketrans("ab", "ba")) for row in rows))
    good(f"compare before.csv --target y {QUICK} --out turned")
    good("train after.csv --from turned --out turned/model")
    assert sl.load("turned/model").pos_label_ == "b"


def test_train_fits_the_winner_or_whom_it_is_told(place):
    good(f"compare data.csv --target y --drop id {QUICK} --out again")
    said = json.loads(good("train --from again --json").stdout)
    assert said["model"] == "again/model"
    assert said["columns"] == ["age", "income", "city"]
    model = sl.load(said["model"])
    assert model.feature_names_in_.tolist() == said["columns"]
    named = json.loads(good("train --from again --contestant cross_entropy --out named --json").stdout)
    assert named["threshold"] == 0.5
    assert "metric 'f1' there and metric 'mcc' here" in bad("train --from again --metric mcc")
    assert "is no folder of `stepless compare`" in bad("train --from nowhere")
    assert "needs a table, or --from" in bad("train")
    assert "needs --target, or --from" in bad("train data.csv")


def test_what_is_written_counts_though_it_be_the_usual(tmp_path):
    good(f"compare data.csv --target y --drop id --metric mcc --seed 5 {QUICK} --out {tmp_path}/mcc")
    line = f"train --from {tmp_path}/mcc --contestant cross_entropy"
    assert "metric 'mcc' there and metric 'f1' here." in bad(f"{line} --metric f1")
    assert "target 'y' there and target 'city' here." in bad(f"{line} --target city")
    seeds = {}
    for option in ("", "--seed 5", "--seed 0"):
        good(f"{line} --metric mcc {option} --out {tmp_path}/model")
        seeds[option] = sl.load(tmp_path / "model").random_state
    assert seeds == {"": 5, "--seed 5": 5, "--seed 0": 0}


def test_a_model_among_other_files_is_refused_before_it_is_fitted(tmp_path, monkeypatch):
    import stepless.tabular.commands.models

    def fail(*_, **__):
        raise AssertionError("fitted in vain")

    monkeypatch.setattr(stepless.tabular.commands.models, "fit_contestant", fail)
    (tmp_path / "mine.txt").write_text("precious")
    said = bad(f"train data.csv --target y --out {tmp_path}")
    assert "holds other files than a model's. Choose a path that is new, empty, or a saved model." in said
    for place in ("mine.txt", "mine.txt/model"):
        assert "mine.txt is a file. Choose another path." in bad(f"train data.csv --target y --out {tmp_path}/{place}")
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_predictions_are_those_of_the_model(place):
    good("train data.csv --target y --drop id --contestant cross_entropy_tuned --out plain")
    rows = list(csv.DictReader(io.StringIO(good("predict plain new-rows.csv --keep id,y").stdout)))
    model = sl.load("plain")
    with open("new-rows.csv", encoding="utf-8") as file:
        given = list(csv.DictReader(file))
    import pandas as pd

    table = pd.DataFrame([{k: r[k] or None for k in ("age", "income", "city")} for r in given])
    table = table.astype({"age": float, "income": float})
    np.testing.assert_allclose([float(r["probability"]) for r in rows], model.predict_proba(table)[:, 1], rtol=1e-12)
    assert [int(r["label"]) for r in rows] == model.predict(table).tolist()
    assert [r["id"] for r in rows] == [r["id"] for r in given]
    good("predict plain new-rows.csv --out p.csv.gz")
    with gzip.open("p.csv.gz", "rt") as file:
        assert len(file.readlines()) == 31
    text = "age,income,city\n31,20,Ulm\n"
    assert len(good("predict plain -", stdin=text).stdout.splitlines()) == 2
    assert good("predict plain -", stdin="city,age,income\n").stdout == "probability,decision,label\n"


def test_a_prediction_that_fails_leaves_no_file():
    good("train data.csv --target y --drop id --contestant cross_entropy --out plain")
    rows = "".join("31,20,Ulm\n" for _ in range(200_000))
    with open("long.csv", "w") as file:
        file.write("age,income,city\n" + rows + "old,20,Ulm\n")
    said = bad("predict plain long.csv --out never.csv")
    assert "long.csv, row 200001, column 'age' holds 'old', which is no number." in said
    assert not [name for name in os.listdir() if "never" in name]
    assert "has no column 'city'. Did you mean 'City'?" in bad("predict plain -", stdin="age,income,City\n1,2,x\n")
    assert run("predict plain -", "age,income,City\n1,2,x\n").stdout == ""
    assert "a saved model is a folder" in bad("predict nothing new-rows.csv")


def test_several_classes_and_several_labels(place):
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 2))
    kind = np.where(x[:, 0] > 0.5, "a", np.where(x[:, 1] > 0.3, "b", "c"))
    with open("many.csv", "w") as file:
        file.write("x,z,kind,p,q\n")
        for (one, two), k in zip(x, kind, strict=True):
            file.write(f"{one:.4f},{two:.4f},{k},{int(one > 0)},{'yes' if two > 0 else 'no'}\n")
    good(f"compare many.csv --target kind --drop p,q {QUICK} --average macro --out classes")
    good("train --from classes")
    good("predict classes/model many.csv --keep kind --out classes.csv")
    with open("classes.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["kind", "probability_a", "probability_b", "probability_c", "label"]
    tuned = good("tune classes.csv --score probability_a,probability_b,probability_c --target kind --json")
    assert json.loads(tuned.stdout)["classes"] == ["a", "b", "c"]
    good(f"compare many.csv --target p,q --drop kind {QUICK} --out labels")
    good("train --from labels")
    lines = good("predict labels/model many.csv").stdout.splitlines()
    assert lines[0] == "probability_p,decision_p,probability_q,decision_q"
    good("predict labels/model many.csv --keep p,q --out labels.csv")
    tuned = good("tune labels.csv --score probability_p,probability_q --target p,q --resamples 20 --json")
    assert json.loads(tuned.stdout)["task"] == "multilabel"
    assert "row 1, column 'kind' holds" in bad("compare many.csv --target kind,q")


@pytest.mark.parametrize(
    ("no", "yes"), [("False", "True"), ("FALSE", "TRUE"), ("0.0", "1.0"), ("-1", "+1"), ("0", "1"), ("a", "b")]
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_labels_are_predicted_as_they_are_written(no, yes, suffix, tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=60)
    target = np.where(x + random.normal(size=60) > -0.5, yes, no)  # the more frequent one is the positive one
    table = pa.table({"id": range(60), "x": x, "y": target})
    if suffix == "csv":
        arrow_csv.write_csv(table, tmp_path / "data.csv")
    else:
        typed = {"True": pa.bool_(), "1.0": pa.float32(), "1": pa.int8()}.get(yes, pa.string())
        pq.write_table(table.set_column(2, "y", table["y"].cast(typed)), tmp_path / "data.parquet")
    line = f"train {tmp_path}/data.{suffix} --target y --drop id --contestant cross_entropy --out {tmp_path}/model"
    good(f"{line} --positive {yes}")
    good(f"predict {tmp_path}/model {tmp_path}/data.{suffix} --keep id,y --out {tmp_path}/out.csv")
    with open(tmp_path / "out.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [str(i) for i in range(60)]
    assert [row["y"] for row in rows] == target.tolist()
    assert {row["label"] for row in rows} == {no, yes}
    assert all(row["label"] == (yes if row["decision"] == "1" else no) for row in rows)
    # of 0 and 1, and of false and true, the latter is positive though it is not the rarer one
    tuned = json.loads(good(f"tune {tmp_path}/data.{suffix} --score x --target y --resamples 0 --json").stdout)
    assert str(tuned["classes"][0]) == (no if yes == "b" else yes)


def test_a_column_is_kept_once(place):
    good("train data.csv --target y --drop id --contestant cross_entropy --out kept")
    assert "--keep names the column 'id' twice; name each column once." in bad("predict kept data.csv --keep id,age,id")


def test_tune_agrees_with_python():
    said = json.loads(good("tune scores.csv --target y --metric f_beta --option beta=2 --json").stdout)
    with open("scores.csv") as file:
        rows = list(csv.DictReader(file))
    scores, y = np.array([float(r["score"]) for r in rows]), np.array([int(r["y"]) for r in rows])
    tuned = sl.tune_threshold(scores, y, "f_beta", beta=2)
    assert (said["threshold"], said["score"]) == (tuned.threshold, tuned.score)
    assert said["threshold_interval"][0] <= tuned.threshold <= said["threshold_interval"][1]
    wish = '--metric recall --subject-to "precision >= 0.99 and recall >= 0.99"'
    assert "no threshold meets precision >= 0.99 and recall >= 0.99" in bad(f"tune scores.csv --target y {wish}")
    cost = json.loads(good('tune scores.csv --target y --metric "(5*fn + fp)/n" --minimize --json').stdout)
    assert cost["threshold"] < tuned.threshold + 1


@pytest.mark.parametrize("called", ["{}", "prob_{}", "{} score", "model(a).{}.p", "p_{}"])
def test_scores_belong_to_the_classes_they_are_called_after(called, tmp_path):
    random = np.random.default_rng(0)
    kinds = ["cat", "dog", "bobcat"]
    truth = random.choice(3, 90)
    scores = random.dirichlet([1, 1, 1], 90) / 2 + np.eye(3)[truth] / 2
    header = ",".join(called.format(kind) for kind in kinds)
    lines = [f"{a},{b},{c},{kinds[t]}" for (a, b, c), t in zip(scores, truth, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join([f"{header},target", *lines]))
    answers = []
    for order in ("cat dog bobcat", "bobcat dog cat", "dog bobcat cat"):
        names = ",".join(called.format(kind) for kind in order.split())
        said = good(["tune", str(tmp_path / "s.csv"), "--score", names, "--resamples", "0", "--json"])
        assert "sorted order" not in said.stderr
        found = json.loads(said.stdout)
        assert found["classes"] == order.split()
        answers.append(found["score"])
    assert min(answers) > 0.9
    assert max(answers) - min(answers) < 1e-12


def test_scores_whose_names_say_nothing_are_taken_in_order_and_that_is_said(tmp_path):
    rows = "".join(f"{i % 3 == 0:d},{i % 3 == 1:d},{i % 3 == 2:d},{(2, 10, 11)[i % 3]}.0\n" for i in range(30))
    (tmp_path / "s.csv").write_text(f"A,B,C,target\n{rows}")
    said = good(f"tune {tmp_path}/s.csv --score A,B,C --resamples 0 --json")
    assert "which are taken in sorted order: 'A' for '2.0', 'B' for '10.0', 'C' for '11.0'." in " ".join(
        said.stderr.split()
    )
    assert json.loads(said.stdout)["score"] == 1
    said = bad(f"tune {tmp_path}/s.csv --score A,B")
    assert "the target has 3 classes, and --score names 2 columns" in said


def test_metrics_lists_the_registries():
    listed = json.loads(good("metrics --json").stdout)
    assert [entry["name"] for entry in listed] == [*sl.METRICS, *sl.RANKINGS]
    assert "2 tp / (2 tp + fp + fn)" in good("metrics").stdout
    assert "beta=1.0" in good("metrics f_beta").stdout
    assert "did you mean 'f_beta'" in bad("metrics f_bta")


def test_version_and_the_names_of_contestants():
    assert good("--version").stdout == f"stepless {version('stepless')}\n"
    assert tuple(contestants.CONTESTANTS) == CONTESTANTS


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare data.csv --target z", "data.csv has no column 'z' for the target. The columns are 'id', 'age',"),
        ("compare data.csv --target Y", "Did you mean 'y'?"),
        ("compare data.csv --target ''", "data.csv has no column '' for the target. The columns are 'id', 'age',"),
        ("train data.csv --target ,", "data.csv has no column ',' for the target. The columns are 'id', 'age',"),
        ("tune scores.csv --target ,", "scores.csv has no column ',' for the target."),
        ("compare dta.csv --target y", "dta.csv does not exist. Did you mean 'data.csv'"),
        ("compare data.csv --target y --metric f2", "unknown metric 'f2'; did you mean"),
        ("compare data.csv --target y --metric auroc", "auroc scores how rows are ranked"),
        ("compare data.csv --target y --metric f1 --minimize", "--minimize is for formulas; f1 knows whether more or"),
        ("compare data.csv --target age", "has 51 different values in 120 rows: it is a quantity or a name"),
        ("compare data.csv --target city --positive Ulm", "--positive is for two classes; data.csv, column 'city' has"),
        ("tune scores.csv --target y --metric auroc", "auroc scores how rows are ranked"),
        ("compare data.csv --target y --metric 'tp +'", "tp +."),
        ("compare data.csv --target y --only svm", "unknown contestant 'svm'; known are cross_entropy,"),
        ("compare data.csv --target y --positive maybe", "column 'y' has no class 'maybe'. Its classes are '0', '1'."),
        ("compare data.csv --target y --weight city", "column 'city' holds text; weights are numbers."),
        ("compare data.csv --target y --groups none", "no column 'none' for the groups"),
        ("compare data.csv --target income", "row 1, column 'income' has no value (8 rows in all)"),
        ("compare data.csv --target id", "has 120 different values in 120 rows: it is a quantity or a name"),
        ("compare data.csv --target y --option beta", "an option of a metric is written as in beta=2; got 'beta'."),
        ("compare data.csv --target y --option maximize=1", "maximize is --minimize, or nothing."),
        ("tune scores.csv --target y --option metric=f1", "metric is --metric."),
        ("compare data.csv --target y --option beta=1 --option beta=2", "--option sets beta twice; set it once."),
        ("tune data.csv --target y --score age --inputs probabilities", "pass --inputs scores or --inputs logits."),
        ("compare data.csv --target y --backend slurm", "backend must be one of 'loky', 'ray', 'dask'; got 'slurm'."),
        ("compare data.csv --target y --resume --out nothing", "there is nothing to resume in nothing"),
        ("compare data.csv --target y --out data.csv", "data.csv is a file; results go into a folder."),
        ("compare data.csv --target y --drop id,age,income,city", "no columns left to predict 'y' from"),
        (
            "compare data.csv --target y --task multiclass",
            "--task multiclass does not fit data.csv, column 'y', which has 2",
        ),
        ("train data.csv --target y --contestant svm", "unknown contestant 'svm'"),
        ("train data.csv --target y --drop id --distributed", "a distributed fit is started by torchrun"),
        ("tune scores.csv --target y --score x", "scores.csv has no column 'x' of scores."),
        ("tune scores.csv --score y --target score", "it is a quantity or a name"),
        ("tune scores.csv --score y --target y", "the target cannot be a column of scores as well"),
    ],
)
def test_sentences_for_what_is_wrong(line, sentence):
    assert sentence in bad(line)


def test_errors_name_options_and_no_arguments_of_python(tmp_path):
    few = "".join(f"{i},{i % 2}\n" for i in range(4))
    (tmp_path / "few.csv").write_text(f"x,y\n{few}")
    said = bad(f"train {tmp_path}/few.csv --target y --contestant cross_entropy --out {tmp_path}/model")
    assert said.endswith("Error: 4 rows cannot be held out in 5 folds; give more rows.")
    line = "--only cross_entropy,boosting_tuned --folds 2 --repeats 1 --jobs 1"
    said = good(f"compare {tmp_path}/few.csv --target y {line} --out {tmp_path}/few")
    assert "rows cannot be held out in 5 folds; give more rows" in said.stdout
    assert "n_members" not in said.stdout
    good(f"compare data.csv --target y --drop id {QUICK} --out {tmp_path}/found")
    line = QUICK.replace("--folds 2", "--folds 3")
    said = bad(f"compare data.csv --target y --drop id {line} --out {tmp_path}/found --resume")
    assert "Resume with what it was begun with, or start anew without --resume." in said
    (tmp_path / "s.csv").write_text("a,b,c,target\n" + "1,0,0,a\n0,1,0,b\n0,0,1,c\n" * 3)
    said = bad(f"tune {tmp_path}/s.csv --score a,b,c --inputs scores")
    assert "works on probabilities: pass --inputs probabilities or --inputs logits." in said
    said = bad(f"compare data.csv --target y --average macro --out {tmp_path}/average")
    assert "--average macro has no effect on a binary task" in said


def test_what_was_found_stays_until_there_is_more(tmp_path):
    line = f"compare data.csv --target y --drop id {QUICK} --out {tmp_path / 'found'}"
    good(line)
    before = sorted(os.listdir(tmp_path / "found"))
    bad(f"{line} --average none")
    assert sorted(os.listdir(tmp_path / "found")) == before
    bad(f"compare data.csv --target y --drop id {QUICK} --average none --out {tmp_path / 'new'}")
    assert os.listdir(tmp_path) == ["found"]


def test_what_came_through_a_pipe_is_named_to_be_fitted(tmp_path):
    with open("data.csv", encoding="utf-8") as file:
        table = file.read()
    said = good(f"compare - --target y --drop id {QUICK} --out {tmp_path}/piped", stdin=table).stdout
    assert f"stepless train table.csv --from {tmp_path}/piped" in said
    assert "came from standard input; name it again" in bad(f"train --from {tmp_path}/piped")
    good(f"train - --from {tmp_path}/piped --contestant cross_entropy", stdin=table)


def test_scores_of_the_other_class_are_noticed():
    assert "Caution" not in good("tune scores.csv --target y --resamples 0").stdout
    said = json.loads(good("tune scores.csv --target y --positive 0 --metric recall --resamples 0 --json").stdout)
    assert said["warnings"][0].startswith("rows of class 0 have the lower scores (area under the ROC curve 0.0")
    assert said["warnings"][0].endswith("if the scores are for 1, say --positive 1.")
    assert said["threshold"] == "-Infinity"


def test_a_contestant_that_fails_is_told_below_the_table(tmp_path):
    said = good(
        f"compare data.csv --target y --drop id --weight age --folds 2 --repeats 1 --only smote --out {tmp_path}/f"
    )
    lines = said.stdout.splitlines()
    assert any(line.split() == ["SMOTE", "+", "cross-entropy", "failed"] for line in lines)
    assert any(line.startswith("SMOTE + cross-entropy failed: SMOTE makes new rows") for line in lines)
    assert "cannot tell: no other contestant could be fitted on every fold" in said.stdout
    assert "Caution: the answer rests on 2 folds" in said.stdout


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    said = bad(f"compare data.csv --target y {QUICK} --out {tmp_path}")
    assert "holds other files than a comparison's" in said
    assert os.listdir(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize("line", ["demo", f"compare data.csv --target y {QUICK}"])
def test_a_file_called_as_one_of_ours_makes_no_folder_ours(line, tmp_path):
    for name in ("breast-cancer.csv", "settings.json"):
        (tmp_path / name).write_text('{"theme": "dark"}')
        assert "holds other files than a comparison's" in bad(f"{line} --out {tmp_path}")
        assert os.listdir(tmp_path) == [name]
        assert (tmp_path / name).read_text() == '{"theme": "dark"}'
        said = bad(f"{line} --resume --out {tmp_path}")
        assert ("there is nothing to resume in" if name != "settings.json" else "settings.json is damaged") in said
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).unlink()
    assert "there is nothing to resume in" in bad(f"{line} --resume --out {tmp_path}")


def test_what_differs_from_a_stopped_run_is_named_as_options_are(tmp_path):
    line = f"compare data.csv --target y --drop id {QUICK} --out {tmp_path}/out"
    good(line)
    for more, said in (
        ("--subject-to 'recall >= 0.1'", "holds a comparison with no subject-to."),
        ("--option zero_division=0", "holds a comparison with no option."),
        ("--drop city", "holds a comparison with drop 'id'."),
        ("--positive 0 --average macro", "holds a comparison with no average, no positive."),
    ):
        assert said in bad(f"{line} --resume {more}")
    assert "no weight there and weight 'age' here." in bad(f"train --from {tmp_path}/out --weight age")


@pytest.mark.parametrize("change", [{"options": [3]}, {"drop": "id"}, {"seed": "x"}, {"file": 5}, {"minimize": None}])
def test_damaged_settings_are_a_sentence(change, tmp_path):
    settings = {"file": "data.csv", "target": "y", "options": [], "drop": ["id"], "minimize": False, "seed": 0}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert "holds no finished comparison" in bad(f"train --from {tmp_path}", code=2)
    (tmp_path / "settings.json").write_text(json.dumps({**settings, **change}))
    name = next(iter(change))
    assert f"settings.json is damaged: {name} is " in bad(f"train --from {tmp_path}")


def test_the_demo_writes_over_its_own_table_alone(tmp_path, monkeypatch):
    import stepless.tabular.commands.comparisons

    good(f"compare data.csv --target y --drop id {QUICK} --out {tmp_path}/other")
    (tmp_path / "other" / "breast-cancer.csv").write_text("precious")
    assert "breast-cancer.csv is not the demo's, which would write over it." in bad(f"demo --out {tmp_path}/other")
    assert (tmp_path / "other" / "breast-cancer.csv").read_text() == "precious"
    asked = []
    monkeypatch.setattr(stepless.tabular.commands.comparisons, "_run", lambda *given: asked.append(given))
    own = tmp_path / "own"
    good(f"demo --out {own}")
    assert sorted(os.listdir(own)) == ["breast-cancer.csv", "settings.json"]
    table = (own / "breast-cancer.csv").read_text()
    own.rename(tmp_path / "moved")
    for line in (f"demo --resume --out {tmp_path}/moved", f"demo --seed 1 --out {tmp_path}/moved"):
        good(line)
        assert (tmp_path / "moved" / "breast-cancer.csv").read_text() == table
    assert "holds a comparison with seed 0" in bad(f"demo --resume --seed 1 --out {tmp_path}/moved")
    assert [(given.seed, plan.repeats) for given, plan, _ in asked] == [(0, 1), (0, 1), (1, 1)]


def test_what_nobody_foresaw_is_a_sentence_too(monkeypatch):
    import stepless.tabular.commands.scores

    def fail(*_, **__):
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(stepless.tabular.commands.scores, "run_metrics", fail)
    assert bad("metrics", code=1).startswith("The run failed: the disk is on fire. (RuntimeError")


def start(line):
    # into files: worker processes outlive a parent that is killed for a while, and would hold a pipe open
    words = [sys.executable, "-m", "stepless", *shlex.split(line)]
    with open("out.txt", "w") as out, open("err.txt", "w") as err:
        return subprocess.Popen(words, stdout=out, stderr=err)


def ended(process):
    """Its exit code and what it said."""
    code = process.wait(timeout=120)
    with open("out.txt") as out, open("err.txt") as err:
        return code, out.read(), err.read()


def wait_for_cell(folder, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if os.path.isdir(f"{folder}/cells") and any(n.endswith(".json") for n in os.listdir(f"{folder}/cells")):
            return
        time.sleep(0.05)
    raise AssertionError(ended(process))


def table_of(result):
    return [{k: v for k, v in row.items() if k != "fit_seconds"} for row in json.loads(result.stdout)["table"]]


def test_a_result_that_was_not_told_of_is_kept(tmp_path, monkeypatch):
    # Ctrl-C comes between a result that is written and the word of it
    def stopped(*_, folder, **__):
        (folder / "cells").mkdir()
        (folder / "cells" / "metric-0-0.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("stepless.tabular.commands.comparisons.compare", stopped)
    said = bad(f"compare data.csv --target y {QUICK} --out {tmp_path / 'out'}", code=130)
    assert "the same command with --resume goes on from there" in said
    assert (tmp_path / "out" / "cells" / "metric-0-0.json").exists()


@pytest.mark.parametrize(("how", "jobs"), [("SIGINT", 1), ("SIGINT", 2), ("SIGKILL", 2)])
@pytest.mark.full
def test_a_stopped_run_goes_on_to_the_same_table(how, jobs):
    line = "compare data.csv --target y --drop id --only metric,cross_entropy --folds 3 --repeats 2"
    folder = f"stopped-{how}-{jobs}"
    process = start(f"{line} --jobs {jobs} --out {folder}")
    wait_for_cell(folder, process)
    process.send_signal(getattr(signal, how))
    code, _, err = ended(process)
    assert "Traceback" not in err
    assert not os.path.exists(f"{folder}/report.html")
    if how == "SIGINT":
        assert code == 130, err
        assert "with --resume goes on from there" in " ".join(err.split())
    kept = len(os.listdir(f"{folder}/cells"))
    assert kept > 0
    changed = bad(f"{line} --jobs 1 --out {folder} --resume --metric mcc")
    assert f"{folder} holds a comparison with metric 'f1'." in changed
    resumed = good(f"{line} --jobs 1 --out {folder} --resume --json")
    whole = good(f"{line} --jobs 1 --out whole --json")
    assert table_of(resumed) == table_of(whole)


def test_exit_codes_and_outputs_of_a_real_process():
    code, out, err = ended(start("metrics mcc --json"))
    assert (code, json.loads(out)["name"], err) == (0, "mcc", "")
    code, out, err = ended(start("tune scores.csv --target nothing"))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: scores.csv has no column 'nothing' for the target.")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
@pytest.mark.parametrize("line", ["--help", "compare --help"])
def test_help_on_a_full_disk_is_no_traceback(line):
    with open("/dev/full", "w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "stepless", *line.split()]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("The run failed: [Errno 28]")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a shell with pipes")
def test_a_reader_that_has_seen_enough_is_no_failure():
    command = f"{shlex.quote(sys.executable)} -m stepless metrics | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Metrics of decisions\n", "")


def test_an_encoding_without_the_letters_loses_no_answer():
    line = [sys.executable, "-m", "stepless", "tune", "scores.csv", "--target", "y", "--positive", "0", "--metric"]
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*line, "recall"], capture_output=True, text=True, check=False, env=ascii_alone)
    assert done.returncode == 0, done.stderr
    assert "recall 1.0000" in done.stdout


@pytest.mark.full
def test_ranks_share_a_fit():
    line = "train data.csv --target y --drop id --metric f1 --json"
    whole = json.loads(good(f"{line} --out one").stdout)
    words = ["--nproc-per-node", "2", "-m", "stepless", *shlex.split(line), "--out", "two", "--distributed"]
    launch = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(launch, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)
    assert shared["threshold"] == pytest.approx(whole["threshold"], abs=1e-5)
    rows = [good(f"predict {name} new-rows.csv").stdout for name in ("one", "two")]
    first, second = ([float(r["probability"]) for r in csv.DictReader(io.StringIO(text))] for text in rows)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_predictions_do_not_replace_the_table(tmp_path):
    table = write_table(tmp_path / "rows.csv")
    good(f"train {table} --target y --contestant cross_entropy --drop id --out {tmp_path / 'model'}")
    before = table.read_bytes()
    assert "is the table itself" in bad(f"predict {tmp_path / 'model'} {table} --out {table}")
    assert table.read_bytes() == before


def test_groups_of_long_numbers_stay_apart(tmp_path):
    random = np.random.default_rng(0)
    ids = [1400000000000000000 + 37 * (row // 3) for row in range(90)]
    y = random.random(90) < 0.4
    table = pa.table({"gid": ids, "x": random.normal(y * 1.0), "y": y.astype(int)})
    pq.write_table(table, tmp_path / "rows.parquet")
    arrow_csv.write_csv(table, tmp_path / "rows.csv")
    for name in ("rows.csv", "rows.parquet"):
        said = bad(f"compare {tmp_path / name} --target y --groups gid --only cross_entropy --folds 31 --jobs 1")
        assert "30 groups" in said
        result = good(f"compare {tmp_path / name} --target y {QUICK} --out {tmp_path / name}.out")
        assert "column 'gid' holds whole numbers of 16 digits and more" in " ".join(result.output.split())
        assert "looks like the name of a group" not in result.output


def test_small_thresholds_are_shown(tmp_path):
    rows = "".join(f"{i / 1e6},{int(i > 40)}\n" for i in range(60))
    (tmp_path / "s.csv").write_text("score,target\n" + rows)
    said = good(f"tune {tmp_path / 's.csv'} --resamples 20").stdout
    cut = json.loads(good(f"tune {tmp_path / 's.csv'} --resamples 0 --json").stdout)["threshold"]
    assert f"{cut:.6f}" in said  # and not 0.0000


def test_predictions_are_not_given_the_name_of_another_format(place):
    good("train data.csv --target y --drop id --contestant cross_entropy --out plain")
    for name in ("p.parquet", "p.TSV", "p.tsv.gz", "p.csv.bz2"):
        said = bad(f"predict plain new-rows.csv --out {name}")
        assert f"predictions are written as CSV, and {name} would be another format: name it .csv or .csv.gz." in said
        assert not os.path.exists(name)
    good("predict plain new-rows.csv --out predictions")


def test_the_index_that_pandas_writes_is_no_feature(tmp_path):
    import pandas as pd

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=90), "y": np.arange(90) % 3 == 0}).sort_values("y")
    frame.to_parquet(tmp_path / "rows.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "rows.parquet").names
    line = f"train {tmp_path / 'rows.parquet'} --target y --contestant cross_entropy --out {tmp_path / 'model'} --json"
    assert json.loads(good(line).stdout)["columns"] == ["x"]
    kept = good(f"predict {tmp_path / 'model'} {tmp_path / 'rows.parquet'} --keep __index_level_0__").stdout
    assert kept.splitlines()[1].startswith(f"{frame.index[0]},")


def test_what_is_dropped_may_be_of_any_type(tmp_path):
    random = np.random.default_rng(0)
    table = pa.table({"lists": [[1, 2]] * 60, "x": random.normal(size=60), "y": random.integers(0, 2, 60)})
    pq.write_table(table, tmp_path / "rows.parquet")
    said = bad(f"compare {tmp_path / 'rows.parquet'} --target y {QUICK}")
    assert "column 'lists' holds list" in said
    assert "Leave the column out" in said
    good(f"compare {tmp_path / 'rows.parquet'} --target y --drop lists {QUICK} --out {tmp_path / 'out'}")
    assert "the column 'y' cannot be the target and dropped" in bad(f"compare data.csv --target y --drop y {QUICK}")


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_tune_does_not_mind_columns_that_it_was_not_asked_about(kind, tmp_path):
    table = arrow_csv.read_csv("scores.csv")
    plain = good("tune scores.csv --target y --json").stdout
    table = table.append_column("far", pa.array([float("inf")] * table.num_rows))
    if kind == "parquet":
        pq.write_table(table.append_column("lists", pa.array([[1]] * table.num_rows)), tmp_path / "scores.parquet")
    else:
        arrow_csv.write_csv(table, tmp_path / "scores.csv")
    assert good(f"tune {tmp_path}/scores.{kind} --target y --json").stdout == plain
    assert "column 'far' holds" in bad(f"tune {tmp_path}/scores.{kind} --target y --score far")


def test_required_options_of_a_metric_are_told():
    assert "k=required" in good("metrics precision_at_k").output
    assert json.loads(good("metrics precision_at_k --json").stdout)["options"]["k"] == "required"


def test_a_gain_of_less_is_told_in_words(tmp_path):
    said = " ".join(
        good(["compare", "data.csv", "--target", "y", "--metric", "(5*fn + fp) / n", "--minimize", "--drop", "id",
              *shlex.split(QUICK), "--out", str(tmp_path / "out")]).output.split()
    )  # fmt: skip
    assert "gain" in said
    assert "differs by" not in said


def test_a_zip_archive_is_called_one(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"PK\x03\x04\x14\0\0\0")
    assert "is a zip archive; unpack it" in bad(f"compare {tmp_path / 'rows.csv'} --target y")


def test_a_narrow_terminal_shows_fewer_columns_and_whole_words(monkeypatch):
    console = Console(width=60, file=io.StringIO())
    monkeypatch.setattr("stepless.tabular.commands.console.answers", lambda: console)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    row = ("cross-entropy + tuned threshold", "0.668", "0.336 to 1.000", "baseline", "54% / 21% / 24%", "0.21", "1.2 s")
    heads = ("", "mean", "95 % interval", "difference", "better / same / worse", "threshold", "fit")
    console.print(grid(heads, [row], spare=(6, 4, 5)))
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["mean", "95", "%", "interval", "difference", "threshold"]
    assert [line.split()[0] for line in lines[1:]] == ["cross-entropy", "+", "threshold"]
    assert max(map(len, lines)) <= 60
