"""The command line: `stepless demo | compare | train | predict | tune | metrics`.

Commands are declared here and implemented in `stepless.tabular.commands`, which is imported when a command is called,
so that help and the first line of output do not wait for large libraries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from stepless.tabular.commands.console import handled_errors, note, typer

app = typer.Typer(
    name="stepless",
    help="Train a classifier on the metric you report, and find out whether that helps on your data.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the run failed, 2 bad input, 130 stopped by Ctrl-C.",
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - of use here alone

        print(f"stepless {version('stepless')}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


#: The keys of `stepless.tabular.comparing.contestants.CONTESTANTS`, whose import takes a while.
CONTESTANTS = (
    "cross_entropy", "cross_entropy_tuned", "class_weighted", "metric", "cost_weighted", "automatic", "boosting_tuned",
    "boosting_metric", "smote",
)  # fmt: skip
_TABLE = "CSV, TSV or Parquet, optionally compressed; - for standard input."

File = Annotated[str, typer.Argument(help=f"The table: {_TABLE}", show_default=False)]
Target = Annotated[str, typer.Option(help="The column to predict; a,b,c for several 0/1 labels.", show_default=False)]
MetricOption = Annotated[
    str, typer.Option("--metric", help="Name of a metric (see stepless metrics), or a formula of tp, fp, fn and tn.")
]
Options = Annotated[
    list[str], typer.Option("--option", help="An option of the metric, such as beta=2.", show_default=False)
]
Minimize = Annotated[bool, typer.Option("--minimize", help="For formulas only: smaller values are better.")]
SubjectTo = Annotated[str | None, typer.Option(help='Constraints, such as "precision >= 0.9".', show_default=False)]
AverageOption = Annotated[
    str | None,
    typer.Option("--average", help="Over classes or labels: macro, micro, weighted or samples.", show_default="macro"),
]
Positive = Annotated[str | None, typer.Option(help="The positive class.", show_default="1 or true, else the rarer one")]
Weight = Annotated[str | None, typer.Option(help="A column with the weight of each row.", show_default=False)]
Groups = Annotated[
    str | None, typer.Option(help="A column of groups. Rows of one group are held out together.", show_default=False)
]
Drop = Annotated[list[str], typer.Option(help="Columns to leave out: a,b,c, or repeat the option.", show_default=False)]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="binary, multiclass or multilabel.", show_default="read from the target")
]
Delimiter = Annotated[str | None, typer.Option(help="Character between values.", show_default="detected")]
Encoding = Annotated[str | None, typer.Option(help="Encoding of the text.", show_default="utf-8")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Random seed. The same seed gives the same result.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
With = Annotated[list[str], typer.Option("--with", help="Contestants to add: smote.", show_default=False)]
Only = Annotated[
    list[str],
    typer.Option(
        "--only",
        help=f"Contestants besides the baseline: a,b,c, or repeat the option. From: {', '.join(CONTESTANTS)}.",
        show_default="all but smote",
    ),
]
Without = Annotated[list[str], typer.Option("--without", help="Contestants to leave out.", show_default=False)]
Folds = Annotated[int, typer.Option(min=2, help="Number of cross-validation folds.")]
Repeats = Annotated[
    int | None,
    typer.Option(min=1, help="How often to repeat the cross-validation.", show_default="2, or 1 above 10,000 rows"),
]
Jobs = Annotated[
    int, typer.Option(help="How many fits run in parallel; -1 for all cores. The result does not depend on it.")
]
BackendOption = Annotated[str, typer.Option("--backend", help="Where fits run: loky (this machine), ray or dask.")]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray or Dask cluster.", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")]
Plots = Annotated[bool, typer.Option("--plots", help="Also draw the curves, as PNG and SVG.")]


@contextmanager
def _handled_errors() -> Iterator[None]:
    """As `handled_errors`, but errors name options instead of arguments of Python."""
    with handled_errors():
        try:
            yield
        except ValueError as error:
            from stepless.tabular.commands.asked import in_options  # noqa: PLC0415 - see above

            raise ValueError(in_options(str(error))) from error


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(lines)


@app.command(epilog=_examples("stepless demo"))
def demo(
    out: Annotated[str, typer.Option(help="Folder for the results.")] = "stepless-demo",
    jobs: Jobs = -1,
    seed: Seed = 0,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Run a comparison on a real, imbalanced table that ships with scikit-learn. It takes about a minute."""
    with _handled_errors():
        note("stepless demo: F1 on breast-cancer measurements, one in ten of them malignant")
        from stepless.tabular.commands.comparisons import Plan, run_demo  # noqa: PLC0415 - see above

        run_demo(Plan(jobs=jobs, out=out, resume=resume, json=json), seed=seed)


@app.command(epilog=_examples(
    "stepless compare data.csv --target y --metric f1",
    'stepless compare data.csv --target y --metric "tp / (tp + fp + fn)" --only metric --folds 3 --repeats 1',
    'stepless compare data.csv --target y --metric recall --subject-to "precision >= 0.5" --only metric --repeats 1',
))  # fmt: skip
def compare(
    file: File,
    target: Target,
    metric: MetricOption = "f1",
    option: Options = [],  # noqa: B006 - typer copies it
    minimize: Minimize = False,
    subject_to: SubjectTo = None,
    average: AverageOption = None,
    positive: Positive = None,
    weight: Weight = None,
    groups: Groups = None,
    drop: Drop = [],  # noqa: B006
    task: TaskOption = None,
    with_: With = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    without: Without = [],  # noqa: B006
    folds: Folds = 5,
    repeats: Repeats = None,
    jobs: Jobs = -1,
    backend: BackendOption = "loky",
    address: Address = None,
    out: Annotated[str | None, typer.Option(help="Folder for the results.", show_default="./stepless-<file>")] = None,
    plots: Plots = False,
    resume: Resume = False,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    json: Json = False,
) -> None:
    """Find out how best to make a classifier for your metric on your data, and whether it is worth it.

    Contestants are compared on rows they have not seen. The baseline is cross-entropy with a tuned threshold.
    The answer, a report and all results are written to a folder.
    """
    with _handled_errors():
        note(f"stepless compare: {metric} on {file}")
        from stepless.tabular.commands.asked import Asked, keys  # noqa: PLC0415 - see above
        from stepless.tabular.commands.comparisons import Plan, run_compare  # noqa: PLC0415

        asked = Asked(
            file, target, metric, tuple(option), minimize, subject_to, average, positive, weight, groups, tuple(drop),
            task, delimiter, encoding, seed,
        )  # fmt: skip
        plan = Plan(
            keys(only) or None, keys(with_), keys(without), folds, repeats, jobs, backend, address, resume, out, plots,
            json,
        )  # fmt: skip
        run_compare(asked, plan)


@app.command(epilog=_examples(
    "stepless train data.csv --target y --metric f1 --out model",
    "stepless train --from stepless-data",
    "stepless train data.csv --target y --contestant cross_entropy_tuned --out model",
))  # fmt: skip
def train(
    context: typer.Context,
    file: Annotated[str | None, typer.Argument(help=f"The table: {_TABLE}", show_default="as in --from")] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.", show_default="as in --from")] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--from", help="A folder of stepless compare: fit its winner, with its settings.", show_default=False
        ),
    ] = None,
    contestant: Annotated[
        str | None,
        typer.Option(
            help="What to fit; see --only of stepless compare.", show_default="the winner of --from, or automatic"
        ),
    ] = None,
    metric: MetricOption = "f1",
    option: Options = [],  # noqa: B006
    minimize: Minimize = False,
    subject_to: SubjectTo = None,
    average: AverageOption = None,
    positive: Positive = None,
    weight: Weight = None,
    groups: Annotated[
        str | None, typer.Option(help="A column of groups, which is not used as a feature.", show_default=False)
    ] = None,
    drop: Drop = [],  # noqa: B006
    task: TaskOption = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for the model.", show_default="model, in the folder of the comparison or in stepless-TABLE"
        ),
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Divide the networks among the ranks of torchrun.")
    ] = False,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    json: Json = False,
) -> None:
    """Fit the winner of a comparison, or a contestant you name, on the whole table, and save the model in a folder.

    The folder holds preprocessing, networks or trees, calibration and threshold, but no code.
    """
    with _handled_errors():
        if int(os.environ.get("RANK", "0")) == 0:
            note(f"stepless train: {before or file or ''}")
        from stepless.tabular.commands.asked import Asked  # noqa: PLC0415 - see above
        from stepless.tabular.commands.models import from_before, run_train  # noqa: PLC0415

        given: dict[str, Any] = {
            "file": file, "target": target, "metric": metric, "options": tuple(option), "minimize": minimize,
            "subject_to": subject_to, "average": average, "positive": positive, "weight": weight, "groups": groups,
            "drop": tuple(drop), "task": task, "delimiter": delimiter, "encoding": encoding, "seed": seed,
        }  # fmt: skip
        sources = {name: context.get_parameter_source("option" if name == "options" else name) for name in given}
        said = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
        asked: Asked = from_before(before, given, said)
        run_train(asked, contestant, before=before, out=out, distributed=distributed, json_too=json)


@app.command(epilog=_examples(
    "stepless predict model new-rows.csv --out predictions.csv",
    "stepless predict model new-rows.csv --keep id > predictions.csv",
))  # fmt: skip
def predict(
    model: Annotated[str, typer.Argument(help="A model folder, written by stepless train.", show_default=False)],
    file: File,
    out: Annotated[
        str | None, typer.Option(help="A CSV file; compressed if it ends in .gz.", show_default="standard output")
    ] = None,
    keep: Annotated[
        list[str], typer.Option(help="Columns to copy in front: a,b,c, or repeat the option.", show_default=False)
    ] = [],  # noqa: B006
    delimiter: Delimiter = None,
    encoding: Encoding = None,
) -> None:
    """Predict probability, decision and label of each row, for any number of rows in bounded memory."""
    with _handled_errors():
        note(f"stepless predict: {file}")
        from stepless.tabular.commands.asked import keys  # noqa: PLC0415 - see above
        from stepless.tabular.commands.models import run_predict  # noqa: PLC0415
        from stepless.tabular.tables.files import Source  # noqa: PLC0415

        source = Source(file, delimiter=delimiter, encoding=encoding, once=True)
        run_predict(model, source, out=out, keep=keys(keep))


@app.command(epilog=_examples(
    "stepless tune scores.csv --score score --target y --metric f1",
    'stepless tune scores.csv --score score --target y --metric recall --subject-to "precision >= 0.6"',
))  # fmt: skip
def tune(
    file: File,
    score: Annotated[
        str,
        typer.Option(
            help="The column of scores, or one per class or label, with commas. Columns for classes may be in any order"
            " if their names contain the classes, as in p_dog,p_cat; otherwise in the sorted order of the classes."
        ),
    ] = "score",
    target: Annotated[str, typer.Option(help="The column with the truth, or one per label, with commas.")] = "target",
    metric: MetricOption = "f1",
    option: Options = [],  # noqa: B006
    minimize: Minimize = False,
    subject_to: SubjectTo = None,
    average: AverageOption = None,
    positive: Positive = None,
    weight: Weight = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            help="What the scores are: scores, probabilities or logits.",
            show_default="scores, or for several classes probabilities",
        ),
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples for the interval; 0 for none.")] = 200,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    json: Json = False,
) -> None:
    """Find the best threshold for the scores of any model, over every possible cut, with an interval."""
    with _handled_errors():
        note(f"stepless tune: {metric} on {file}")
        from stepless.tabular.commands.asked import Asked  # noqa: PLC0415 - see above
        from stepless.tabular.commands.scores import run_tune  # noqa: PLC0415

        asked = Asked(
            file, target, metric, tuple(option), minimize, subject_to, average, positive, weight, seed=seed,
            delimiter=delimiter, encoding=encoding,
        )  # fmt: skip
        run_tune(asked, score, inputs=inputs, resamples=resamples, json_too=json)


@app.command(epilog=_examples("stepless metrics", "stepless metrics f_beta"))
def metrics(
    name: Annotated[str | None, typer.Argument(help="Show all about this metric.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """List all metrics with their formulas, or describe one."""
    with _handled_errors():
        from stepless.tabular.commands.scores import run_metrics  # noqa: PLC0415 - see above

        run_metrics(name, json_too=json)


def main() -> None:
    """Run the command line."""
    try:
        with handled_errors():  # help is printed outside of the commands
            app()
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
