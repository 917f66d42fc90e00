"""The verdict: whether anything beats cross-entropy with a tuned threshold, and what to ship, in one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from stepless.tabular.comparing.contestants import CONTESTANTS
from stepless.tabular.outcome import Difference, Entry, format_number, format_range, format_threshold, score_digits

#: The probability that a yes needs; a no needs that of a real gain to be at most the rest.
_SURE = 0.95


def reach_verdict(
    entries: Sequence[Entry],
    baseline: str,
    rope: float,
    metric: str,
    task: str,
    broken: Collection[str] = (),
    doubts: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """Return the key of the contestant to ship, and the verdict.

    Yes: some contestant beats the baseline by more than the rope with a probability of at least 95 %. No: none does
    with more than 5 %. Otherwise the data cannot tell, and the simpler baseline is kept.

    Args:
        entries: The contestants, best mean first.
        baseline: Key of the baseline.
        rope: Contestants that differ by no more than this count as equal.
        metric: The displayed name of the metric.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        broken: Keys of contestants that do not meet the constraints.
        doubts: By key, why an equal difference from the baseline in every fold is no evidence.
    """
    able = [e for e in entries if e.failed is None and e.key not in broken]
    base = next((e for e in entries if e.key == baseline), None)
    if base is None or base not in able:
        return _without_baseline(entries, able, base, metric)
    others = [(e, e.difference) for e in able if e.difference is not None]
    sure = [(e, gap) for e, gap in others if gap.better >= _SURE]
    digits = score_digits(rope)
    if sure:
        best, gap = sure[0]
        trained = CONTESTANTS[best.key].on_metric
        rival = _rival(gap, others, rope, metric) if trained else ""
        answer = "yes" if trained else f"yes, but not by training on {metric}"
        return best.key, (
            f"{answer}: {best.name} scores {metric} {format_number(best.mean, digits)}, better by"
            f" {format_number(gap.mean, digits)} ({format_range(gap.interval, digits)}) than {base.name} with"
            f" {format_number(base.mean, digits)}; by more than {rope:.2g} with a probability of"
            f" {_percent(gap.better)}.{rival}"
        )
    kept = f"{_way(base, task)} ({metric} {format_number(base.mean, digits)}, {format_range(base.interval, digits)})"
    if not others:
        return base.key, f"cannot tell: {_why_none(entries, base, broken)}; keep {kept}."
    likeliest, gap = max(others, key=lambda pair: (pair[1].better, pair[1].mean))
    measured = (
        f"{likeliest.name} is {_by(gap.mean, digits)} ({format_range(gap.interval, digits)}), and better by more than"
        f" {rope:.2g} with a probability of {_percent(gap.better)}"
    )
    if gap.better <= 1 - _SURE:
        return base.key, f"no: keep {kept}; of the others, {measured}."
    if likeliest.key in doubts:
        alike = f"{likeliest.name} is {_by(gap.mean, digits)} in every fold, which is no evidence"
        return base.key, f"cannot tell: {alike}, as {doubts[likeliest.key]}; until the data can tell, keep {kept}."
    return base.key, f"cannot tell: {measured}; until more rows can tell, keep {kept}."


def _rival(gap: Difference, others: Sequence[tuple[Entry, Difference]], rope: float, metric: str) -> str:
    """Name a contestant that does as well without training on the metric, which then is not the reason."""
    plain = [(e, other) for e, other in others if not CONTESTANTS[e.key].on_metric and other.mean >= gap.mean - rope]
    if not plain:
        return ""
    name, mean = plain[0][0].name, format_number(plain[0][0].mean, score_digits(rope))
    return f" {name[:1].upper()}{name[1:]} does as well without training on {metric} ({mean})."


def _why_none(entries: Sequence[Entry], base: Entry, broken: Collection[str]) -> str:
    """Why there is nothing to compare the baseline with."""
    rest = [e for e in entries if e.key != base.key]
    if not rest:
        return "nothing else took part"
    failed = sum(e.failed is not None for e in rest)
    return (
        "no other contestant could be fitted on every fold"
        if failed == len(rest)
        else "no other contestant meets the constraints"
        if all(e.key in broken for e in rest)
        else "no other contestant could be fitted on every fold and meets the constraints"
    )


def _without_baseline(
    entries: Sequence[Entry], able: Sequence[Entry], base: Entry | None, metric: str
) -> tuple[str, str]:
    best = (able or [e for e in entries if e.failed is None])[0]
    if base is not None and base.failed is None:
        why = "does not meet the constraints"
    else:
        why = "could not be fitted" + (f" ({base.failed.rstrip('.')})" if base is not None and base.failed else "")
    name = CONTESTANTS[best.key].name
    if not able:
        return (
            best.key,
            f"cannot tell: no contestant meets the constraints on rows it has not seen; {name} comes first.",
        )
    return best.key, (
        f"cannot tell: the baseline {why}; of the others {name} comes first with {metric} {format_number(best.mean)}"
        f" ({format_range(best.interval)})."
    )


def _way(base: Entry, task: str) -> str:
    if task == "binary":
        shown = format_threshold(base.threshold)
        if shown == "–":  # NaN: as many folds call every row positive as call none
            return "cross-entropy and a threshold on which the folds do not agree"
        return f"cross-entropy and a threshold {'that' if shown.startswith('calls') else 'of'} {shown}"
    return f"cross-entropy and {'its class offsets' if task == 'multiclass' else 'a threshold for each label'}"


def _by(gain: float, digits: int) -> str:
    """The gain in words, as its sign would mislead for metrics of which less is better."""
    shown = format_number(abs(gain), digits)
    return f"{'worse' if gain < 0 else 'better'} by {shown}" if float(shown) else "the same"


def _percent(probability: float) -> str:
    if probability < 0.005:
        return "less than 1 %"
    return "more than 99 %" if probability > 0.995 else f"{100 * probability:.0f} %"
