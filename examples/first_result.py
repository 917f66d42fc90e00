"""A first result: three ways to a good F1 on a small, imbalanced table.

The data are scikit-learn's breast-cancer measurements with most of the malignant cases left out, so that one row in
ten is malignant. The contestants share one small network, one optimiser and one starting point; only the loss and the
threshold differ:

- cross-entropy, positive where the probability is at least ½;
- cross-entropy, then the threshold with the best F1 on scores from held-out parts of the training rows;
- `stepless.MetricLoss("f1")`, positive where the probability is at least ½.

Run it with ``make demo``, or with ``python examples/first_result.py``.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import RepeatedStratifiedKFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import stepless as sl

FOLDS, REPEATS = 5, 4
INNER_FOLDS = 5  # for the scores the threshold is chosen on
STEPS, LEARNING_RATE = 200, 0.01
GRID = np.linspace(0.01, 0.99, 99)

PLAIN, TUNED, TRAINED = "cross-entropy at 1/2", "cross-entropy + tuned threshold", 'MetricLoss("f1") at 1/2'


def imbalanced_table() -> tuple[np.ndarray, np.ndarray]:
    """All benign rows, and as many malignant ones as make a tenth of the table; malignant is the positive class."""
    X, y = load_breast_cancer(return_X_y=True)
    malignant, benign = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    kept = np.random.default_rng(0).choice(malignant, round(len(benign) / 9), replace=False)
    rows = np.sort(np.concatenate([benign, kept]))
    return X[rows], (y[rows] == 0).astype(int)


def train(X: Tensor, y: Tensor, loss_fn: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """The plain loop. To train on a metric, pass another loss; nothing else changes."""
    torch.manual_seed(0)  # every contestant starts from the same weights
    model = nn.Sequential(nn.Linear(X.shape[1], 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_fn(model(X), y).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def logits(model: nn.Module, X: Tensor) -> Tensor:
    """The scores of unseen rows."""
    return model(X)


def best_threshold(X: Tensor, y: Tensor) -> float:
    """The threshold with the best F1 on scores of rows that were held out; the middle one if several are best."""
    held_out = torch.empty(len(y))
    for fit, rest in StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=0).split(X, y):
        held_out[rest] = logits(train(X[fit], y[fit], nn.BCEWithLogitsLoss()), X[rest])
    scores = np.array([sl.score(held_out, y, "f1", threshold=float(t)).item() for t in GRID])
    best = GRID[scores == scores.max()]
    return float(best[len(best) // 2])


def splits(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Training and test rows, standardised by what the training rows show."""
    for fit, test in RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=0).split(X, y):
        scaler = StandardScaler().fit(X[fit])
        features = [torch.tensor(scaler.transform(X[rows]), dtype=torch.float32) for rows in (fit, test)]
        targets = [torch.tensor(y[rows], dtype=torch.float32) for rows in (fit, test)]
        yield features[0], targets[0], features[1], targets[1]


def contest(X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor) -> dict[str, float]:
    """The test F1 of each contestant on one split."""
    plain = logits(train(X, y, nn.BCEWithLogitsLoss()), X_test)
    trained = logits(train(X, y, sl.MetricLoss("f1")), X_test)
    return {
        PLAIN: sl.score(plain, y_test, "f1").item(),
        TUNED: sl.score(plain, y_test, "f1", threshold=best_threshold(X, y)).item(),
        TRAINED: sl.score(trained, y_test, "f1").item(),
    }


def verdict(results: dict[str, np.ndarray]) -> str:
    """One sentence on who won, whoever it was."""
    first, second = sorted(results, key=lambda name: results[name].mean(), reverse=True)[:2]
    gap = results[first] - results[second]
    wins, losses = int((gap > 0).sum()), int((gap < 0).sum())
    # a fair coin strays this far from even
    draw = wins - losses <= (wins + losses) ** 0.5
    opening = "No clear winner. The highest mean is that of" if draw else "The winner is"
    return (
        f"{opening} {first}, {gap.mean():.3f} above {second}:\n"
        f"split by split it won {wins}, lost {losses} and tied {len(gap) - wins - losses}."
    )


def main() -> None:
    """Run the contest and print the table."""
    torch.set_num_threads(1)  # tensors this small only wait for a second thread
    started = time.perf_counter()
    X, y = imbalanced_table()
    print(f"{len(y)} rows, {y.sum()} of them positive; {REPEATS} × {FOLDS} stratified folds; F1 on the test fold\n")

    outcomes: list[dict[str, float]] = []
    for rows in splits(X, y):
        outcomes.append(contest(*rows))
        if len(outcomes) % FOLDS == 0:
            print(
                f"  {len(outcomes):2d} of {FOLDS * REPEATS} splits, {time.perf_counter() - started:.0f} s", flush=True
            )
    results = {name: np.array([outcome[name] for outcome in outcomes]) for name in (PLAIN, TUNED, TRAINED)}

    width = max(map(len, results))
    print(f"\n{'contestant':<{width}}  mean F1     sd")
    for name, scores in results.items():
        print(f"{name:<{width}}  {scores.mean():7.3f}  {scores.std(ddof=1):5.3f}")
    print(f"\n{verdict(results)}")
    print("One small table settles nothing: try it on your own data.")


if __name__ == "__main__":
    main()
