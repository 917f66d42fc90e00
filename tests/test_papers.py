"""The papers suite: docs/papers.md is that of the results, results are kept whole, and the protocol of AnyLoss."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import stepless as sl

FOLDER = Path(__file__).parent.parent / "benchmarks" / "papers"
MODULES = ("frame", "wording", "perceptrons", "judging", "resampling", "resnet", "anyloss_runs", "anyloss_scale",
           "anyloss_wins", "anyloss_sets", "pack_anyloss")  # fmt: skip


@pytest.fixture(scope="module")
def papers():
    """The modules of the suite, beside each other as in a run; page.py under a name that no other page has."""
    added = [str(FOLDER), str(FOLDER.parent)]
    sys.path[:0] = added
    try:
        found = {name: importlib.import_module(name) for name in MODULES}
        spec = importlib.util.spec_from_file_location("papers_page", FOLDER / "page.py")
        found["page"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found["page"])
        yield found
    finally:
        for path in added:
            sys.path.remove(path)


# ---------------------------------------------------------------------------------------------------------------------
# Results and page
# ---------------------------------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_results(papers):
    page = papers["page"]
    assert page.render(page.read()) == page.PAGE.read_text(encoding="utf-8")


def test_verdicts_are_those_of_the_results(papers):
    for results in papers["page"].read():
        if results.cells:
            assert results.verdicts == results.table.verdicts(results.folds), results.table.name


def test_no_result_is_stale(papers):
    for table in papers["frame"].tables():
        path = FOLDER / "results" / f"{table.name}.json"
        if path.exists():
            written = json.loads(path.read_text(encoding="utf-8"))
            assert written["protocol"] == json.loads(json.dumps(table.protocol)), f"{table.name}: run it again"
            assert {"commit", "protocol", "folds", "verdicts", "versions", "machine", "seconds"} <= set(written)


def test_every_table_has_its_config_and_a_name_of_its_own(papers):
    names = [table.name for table in papers["frame"].tables()]
    assert len(names) == len(set(names))
    for table in papers["frame"].tables():
        assert table.protocol


def test_every_table_copes_with_the_cells_that_are_there(papers):
    """Cells arrive in any order: a page of some of them is made without a word of the others."""
    random = np.random.default_rng(0)
    for results in papers["page"].read():
        folds, table = results.folds, results.table
        for number in {1, 2, len(folds) // 2} - {0}:
            chosen = set(random.permutation(list(folds))[:number])
            part = {cell: value for cell, value in folds.items() if cell in chosen}
            if part:
                table.verdicts(part)
                assert "None" not in "".join(table.show(part))
                assert "None" not in table.summary(part)
                assert table.missing(part) == table.missing(folds) + len(folds) - len(part)


def test_a_table_that_is_partly_run_says_so_and_folds_what_holds_away(papers, tmp_path):
    frame, page, table = papers["frame"], papers["page"], toy(papers)
    held = [frame.Verdict(f"claim {i}", "1", "1", frame.REPRODUCED) for i in range(9)]
    table.verdicts = lambda folds: [frame.judged("all is well", "yes", "no", holds=False, reason="Not yet."), *held]
    table.show = lambda folds: ["words"]
    results = frame.run(table, frame.Context(), tmp_path, frame.Choice(["a"]))
    text = page.render([results])
    assert "**Partly run**: 1 of 3 cells are missing" in text
    assert "| **Toy** | all tables | 9 | 1 |  | 1 |" in text
    assert text.index("**not reproduced**: Not yet.") < text.index("The 9 claims that were reproduced")
    assert "Not run so far." in page.render([frame.Results(table)])


def test_a_pattern_that_no_cell_matches_is_told(papers):
    choice, cells = papers["frame"].Choice(["a", "a/*", "b/z", "c"]), ["a/x", "a/y", "b/x"]
    assert choice.without_cell(cells) == ["b/z", "c"]
    ran = subprocess.run(
        [sys.executable, FOLDER / "run.py", "anyloss_1", "--cell", "1e-16", "zzz"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr.strip()) == (1, "no cell is called zzz in anyloss_1.")


def test_folds_are_counted_in_the_plural(papers):
    fold = {"same": [0, 0, 3, 7], "mixed": [2, 0, 1, 7]}
    table = importlib.import_module("anyloss_four").TABLES[0]

    def reason(*again):
        cells = {"1/f1": ["same", "mixed"], "1/released:f1": again}
        return table._reason({k: {"counts": [fold[f] for f in v]} for k, v in cells.items()}, "1", "f1", "f1", [0.9])

    assert ", with no such fold," in reason("mixed", "mixed")
    assert ", with 1 such fold," in reason("same", "mixed")
    assert ", with 2 such folds," in reason("same", "same")


def test_shares_of_all_sets_are_judged_once_all_have_run(papers):
    table, sets = papers["anyloss_sets"].Scales(), papers["anyloss_wins"].SETS
    random = np.random.default_rng(0)

    def some(number):
        return {f"{i}/{m}/{s:g}": {"counts": random.integers(1, 50, (10, 4)).tolist()} for i in range(1, number + 1)
                for m in table.protocol["metrics"] for s in table.protocol["scales"]}  # fmt: skip

    assert len(table.verdicts(some(sets))) == 3
    assert table.missing(some(sets)) == 0
    assert not table.verdicts(some(sets - 1))


def test_clearly_is_by_two_standard_errors(papers):
    wording = papers["wording"]
    assert wording.level([0.5, 0.6, 0.7], [0.4, 0.5, 0.61]) == "clearly above"
    assert wording.level([0.5, 0.6, 0.7], [0.4, 0.9, 0.7]) == "**below**, not clearly"
    assert wording.tally(["clearly above"]) == "clearly above"
    found = wording.tally(["clearly above", "**below**, not clearly", "**clearly below**"])
    assert found == "clearly above in 1 and clearly below in 1 of 3, not clearly apart in 1 (mean below in 1)"
    assert wording.listing(["a", "b", "c"]) == "a, b and c"


def test_folds_that_decide_nothing_are_seen(papers):
    folds = {"a": {"counts": [[3, 7, 0, 0], [0, 0, 3, 7], [2, 0, 1, 7]]}}
    assert papers["anyloss_runs"].constant(folds, "a", "f1").tolist() == [True, True, False]


def toy(papers):
    """A table of three cells that counts how often it is asked."""
    frame = papers["frame"]

    class Toy(frame.Table):
        name, paper, title, protocol, asked = "toy", "Toy", "A toy", {"seed": 0}, []

        def cells(self, context):
            return ["a/x", "a/y", "b/x"]

        def compute(self, cells, context):
            for cell in cells:
                self.asked.append(cell)
                if cell == "b/x" and len(self.asked) == 3:
                    raise KeyboardInterrupt
                yield cell, {"counts": [[np.int64(1), 0, 0, 2]], "score": np.float32(1 / 3)}

        def verdicts(self, folds):
            return [frame.judged("there are cells", "3", str(len(folds)), holds=len(folds) == 3, reason="Not yet.")]

    return Toy()


def test_a_run_that_was_stopped_goes_on(papers, tmp_path):
    frame, table = papers["frame"], toy(papers)
    frame.run(table, frame.Context(), tmp_path, frame.Choice(["a"]))
    with pytest.raises(KeyboardInterrupt):
        frame.run(table, frame.Context(), tmp_path)
    results = frame.run(table, frame.Context(), tmp_path)
    assert table.asked == ["a/x", "a/y", "b/x", "b/x"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.json"]
    assert results.folds["a/x"] == {"counts": [[1, 0, 0, 2]], "score": 0.333333}
    assert frame.Results.read(table, tmp_path).verdicts[0].verdict == frame.REPRODUCED
    frame.run(table, frame.Context(), tmp_path, frame.Choice(["a/x"], again=True))
    assert table.asked[4:] == ["a/x"]  # one cell anew


def test_a_changed_protocol_makes_results_stale(papers, tmp_path):
    frame, table = papers["frame"], toy(papers)
    frame.run(table, frame.Context(), tmp_path, frame.Choice(["a"]))
    assert frame.Results.read(table, tmp_path).cells
    type(table).protocol = {"seed": 1}
    assert not frame.Results.read(table, tmp_path).cells


def test_shards_are_a_partition_of_the_sets(papers):
    cells = [f"{name}/{kind}" for name in "abcde" for kind in "xy"]
    shares = [papers["frame"].Choice(shard=(k, 3)).share(cells) for k in range(3)]
    assert sorted(cell for share in shares for cell in share) == cells
    assert all(
        len({cell[0] for cell in a} & {cell[0] for cell in b}) == 0 for a in shares for b in shares if a is not b
    )


def test_a_verdict_says_why(papers):
    frame = papers["frame"]
    with pytest.raises(ValueError, match="say why: F1 is not reproduced, without a reason"):
        frame.Verdict("F1", "1", "0", frame.NOT_REPRODUCED)
    with pytest.raises(ValueError, match="a verdict is 'reproduced', 'not reproduced' or 'not runnable here'"):
        frame.Verdict("F1", "1", "0", "perhaps")


# ---------------------------------------------------------------------------------------------------------------------
# AnyLoss: the protocol
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(papers):
    """Set #1, which is made and not read, with its folds."""
    arrays = papers["pack_anyloss"].first()
    given = [arrays[f"{kind}_1"] for kind in ("x", "y", "outer", "inner")]
    return papers["anyloss_runs"].Problem(given[0], given[1].astype(np.int64), *given[2:])


def scored(papers, problem, logits, metric):
    return papers["judging"].metric_of(problem.counts(logits.numpy()), metric).mean()


def test_set_1_is_as_printed(papers, first):
    """Table 17; and soft F1 beats cross-entropy at ½ on F1, and balanced accuracy on balanced accuracy."""
    perceptrons = papers["perceptrons"]
    rows = perceptrons.make_rows(first.x, first.y, first.train)
    found = {}
    for name, rate in (("bce", 0.2), ("f1", 0.01), ("balanced_accuracy", 0.01)):
        logits = perceptrons.descend(rows, perceptrons.Objective(name, rate), 1000)
        found[name] = {metric: scored(papers, first, logits, metric) for metric in ("f1", "balanced_accuracy")}
    assert found["bce"]["f1"] == pytest.approx(0.547, abs=0.003)
    assert found["f1"]["f1"] == pytest.approx(0.632, abs=0.003)
    assert found["balanced_accuracy"]["balanced_accuracy"] == pytest.approx(0.875, abs=0.003)
    assert found["f1"]["f1"] > max(found["bce"]["f1"], found["balanced_accuracy"]["f1"])
    assert found["balanced_accuracy"]["balanced_accuracy"] > found["f1"]["balanced_accuracy"]


def test_the_rival_closes_the_gap(papers, first):
    """Cross-entropy with a threshold tuned on inner held-out scores, on a part of set #1."""
    part = np.random.default_rng(0).permutation(len(first.y))[:2000]
    given = papers["anyloss_runs"].Problem(first.x[part], first.y[part], first.outer[part], first.inner[:, part])
    context, protocol = papers["frame"].Context(), {"steps": 300}
    cells = dict(papers["anyloss_runs"].slp(given, ["bce", "rival"], {"bce": 0.5}, protocol, context))
    metric_of = papers["judging"].metric_of
    plain, tuned = metric_of(cells["bce"]["counts"], "f1"), metric_of(cells["rival"]["counts"]["f1"], "f1")
    assert tuned.mean() > plain.mean() + 0.03


def test_folds_never_meet(papers, first):
    nested = first.nested.reshape(len(first.y), 10, 5)
    for fold in range(10):
        held = first.outer == fold
        assert not first.train[held, fold].any()
        assert not nested[held, fold].any()
        for inner in range(5):
            assert not nested[first.inner[fold] == inner, fold, inner].any()
        assert (nested[~held, fold].sum(1) == 4).all()


def test_nets_trained_together_are_those_trained_alone(papers):
    perceptrons = papers["perceptrons"]
    random = np.random.default_rng(0)
    x, y, train = random.normal(3, 5, (60, 4)), random.integers(0, 2, 60), random.random((60, 3)) < 0.7
    for name in ("bce", "f1", "g_mean"):
        together = perceptrons.descend(
            perceptrons.make_rows(x, y, train), perceptrons.Objective(name, 0.1, scale=5.0), 30
        )
        for net in range(3):
            seen = train[:, net]
            scaled = torch.tensor((x - x[seen].mean(0)) / x[seen].std(0), dtype=torch.float32)
            weight, bias = torch.zeros(4, requires_grad=True), torch.zeros(1, requires_grad=True)
            loss = torch.nn.functional.binary_cross_entropy_with_logits
            loss = loss if name == "bce" else sl.presets.anyloss(name, amplification=5.0)
            optimiser = torch.optim.SGD([weight, bias], lr=0.1)
            for _ in range(30):
                optimiser.zero_grad()
                loss((scaled @ weight + bias)[seen], torch.tensor(y[seen], dtype=torch.float32)).backward()
                optimiser.step()
            torch.testing.assert_close(together[:, net], (scaled @ weight + bias).detach(), rtol=1e-3, atol=1e-4)


def test_the_hidden_layer_learns_and_starts_anew_in_every_fold(papers):
    perceptrons = papers["perceptrons"]
    random = np.random.default_rng(1)
    x = random.normal(size=(400, 3))
    y = (x[:, 0] + x[:, 1] > 1).astype(int)
    train = np.arange(400)[:, None] % 3 != np.arange(3)
    rows = perceptrons.make_rows(x, y, train)
    objectives = [perceptrons.Objective("bce", 0.05), perceptrons.Objective("f1", 0.05, scale=10.0)]
    plan = perceptrons.Plan(epochs=40, batches=5, hidden=2, seeds=[0, 1, 2])
    logits = perceptrons.logits_of(perceptrons.train_batches(rows, objectives, plan), rows)
    held = ~torch.from_numpy(train)
    for place in range(2):
        assert sl.score(logits[:, :, place][held], torch.tensor(y)[:, None].expand(-1, 3)[held], "f1") > 0.8
    again = perceptrons.train_batches(rows, objectives, plan)
    torch.testing.assert_close(logits, perceptrons.logits_of(again, rows))


@pytest.mark.parametrize("goal", ["g_mean", "balanced_accuracy"])
def test_the_released_losses_are_the_metrics_when_the_batch_is_everything(papers, goal):
    objective = papers["perceptrons"].Objective
    z, y = torch.randn(40, 2), torch.randint(0, 2, (40, 2)).float()
    plain, released = objective(goal, 1.0).loss(2)(z, y), objective(goal, 1.0, rows=40).loss(2)(z, y)
    torch.testing.assert_close(plain, released)
    wide = objective(goal, 1.0, rows=800).loss(2)(z, y)
    assert wide < released  # false positives weigh next to nothing


def test_the_printed_ranges_of_the_scale_follow_from_the_two_conditions(papers):
    frame, table = papers["frame"], papers["anyloss_scale"].Range()
    folds = dict(table.compute(table.cells(frame.Context()), frame.Context()))
    assert [v.verdict for v in table.verdicts(folds)] == [frame.REPRODUCED] * 6


# ---------------------------------------------------------------------------------------------------------------------
# AnyLoss: judging
# ---------------------------------------------------------------------------------------------------------------------


def test_metrics_of_counts_are_the_scores(papers):
    random = np.random.default_rng(0)
    target, decided = random.integers(0, 2, 50), random.integers(0, 2, 50)
    counts = [papers["judging"].count(decided, target)]
    for name, (metric, options) in papers["perceptrons"].METRICS.items():
        ours = sl.score(decided.astype(float), target, metric, inputs="probabilities", **options)
        assert papers["judging"].metric_of(counts, name)[0] == pytest.approx(float(ours)), name


@pytest.mark.parametrize("rope", [0.01, 0.05])
def test_the_sign_test_is_that_of_baycomp(papers, rope):
    baycomp = pytest.importorskip("baycomp")
    random = np.random.default_rng(0)
    ours, theirs = random.random(40), random.random(40)
    theirs[:15] = ours[:15] + random.normal(0, 0.02, 15)
    found = papers["judging"].sign_test(ours, theirs, rope)
    left, equal, right = baycomp.SignTest.probs(theirs, ours, rope=rope)
    assert (found.lose, found.draw, found.win) == pytest.approx((left, equal, right), abs=0.01)


def test_wins_and_ties(papers):
    scores = {"a": np.array([0.5, 0.7, 0.9]), "b": np.array([0.5, 0.8, 0.1]), "c": np.array([0.1, 0.1, 0.1])}
    assert papers["judging"].wins(scores) == ({"a": 1, "b": 1, "c": 0}, 1, {"a": 1, "b": 2, "c": 0})
    assert papers["judging"].duel(scores["a"], scores["b"]) == (1, 1, 1)


@pytest.mark.parametrize("net", ["slp", "mlp"])
def test_the_paper_gives_ties_to_anyloss(papers, net):
    """Its counts add up to all sets, so a tie went to one; what the others have on the 89 fits within the print."""
    table = papers["anyloss_sets"].Slp() if net == "slp" else papers["anyloss_sets"].Mlp()
    folds = papers["frame"].folds_of(table.name)
    for metric, printed in table.printed["wins"].items():
        assert sum(printed) == table.printed["sets"]
        _, _, counts = papers["judging"].wins(table.authors(folds, metric))
        assert sum(counts.values()) == papers["anyloss_wins"].SETS
        rest = [said - counts[name] for said, name in zip(printed, ("MSE", "BCE", "AnyLoss"), strict=True)]
        assert min(rest) >= 0


@pytest.mark.parametrize(
    ("name", "metric", "ends"),
    [("Slp", "f1", "it is the sets."), ("Mlp", "f1", "it is the corrected protocol, and the sets."),
     ("Mlp", "balanced_accuracy", "reason not found.")],
)  # fmt: skip
def test_why_gains_are_not_met_is_measured(papers, name, metric, ends):
    """The sets, where ours are those of the authors' own scores; the protocol, where they are so as released alone."""
    table = getattr(papers["anyloss_sets"], name)()
    assert table._why_gains(papers["frame"].folds_of(table.name), metric, 0.06).endswith(ends)


def test_resampling_reaches_the_ratios(papers):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(300, 3)), (np.arange(300) < 30).astype(int)
    for resample in (papers["resampling"].smote, papers["resampling"].thinned):
        grown, target, used = resample(x, y, [1.0, 0.5, 0.05], random, 5)
        for column, ratio in ((0, 1.0), (1, 0.5)):
            kept = target[used[:, column]]
            assert (kept == 1).sum() / (kept == 0).sum() == pytest.approx(ratio, abs=0.02)
        assert not used[:, 2].any()  # more balanced as it is
        assert (np.abs(grown) <= np.abs(x).max()).all()  # between rows that are there


def test_resnet_50_has_the_parameters_of_resnet_50(papers):
    """23.5 million without its 1,000 classes; the first layer is 3 × 3 over one channel here."""
    resnet = papers["resnet"]
    parameters = sum(p.numel() for p in resnet.resnet50().parameters())
    assert parameters == 23_508_032 - 64 * 3 * 49 + 64 * 9 + 2049
    assert resnet.small()(torch.randn(2, 1, 28, 28)).shape == (2,)


# ---------------------------------------------------------------------------------------------------------------------
# All benchmarks
# ---------------------------------------------------------------------------------------------------------------------


def test_every_script_reads_its_arguments():
    """One that does not would run for minutes, and write its results, when asked for help or with a misspelt option."""
    scripts = [path for path in FOLDER.parent.glob("*/*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert len(scripts) > 20
    for path in scripts:
        assert "argparse.ArgumentParser(description=__doc__" in path.read_text(encoding="utf-8"), path


def test_equal_losses_share_their_rank(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    spec = importlib.util.spec_from_file_location("defaults_run", FOLDER.parent / "defaults" / "run.py")
    defaults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(defaults)
    monkeypatch.setattr(defaults, "METRICS", ("f1",))
    rows = defaults.summary({"a": {"f1": {"x": [0.5], "y": [0.5], "z": [0.4]}}}).splitlines()[-3:]
    assert {row.split()[0]: row.split()[-1] for row in rows} == {"x": "1.50", "y": "1.50", "z": "3.00"}
    folder = FOLDER.parent / "defaults"
    monkeypatch.undo()
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))["folds"]
    assert defaults.summary(found).strip() == (folder / "summary.txt").read_text(encoding="utf-8").strip()
