"""The four tables, the images and the graph of *Bridging the Gap*, split as its released code splits them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from frame import packed
from stacked import Net, Parts, through
from torch import Tensor

SETS = ("cocktail", "adult", "mammography", "creditcard")
WORDS = {"cocktail": "CocktailParty", "adult": "Adult", "mammography": "Mammography", "creditcard": "Kaggle creditcard",
         "transport": "CIFAR-10 transportation", "frog": "CIFAR-10 frog"}  # fmt: skip
_PAIRS = tuple(combinations(range(6), 2))


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows, 0/1 targets, and one split a trial."""

    matrix: Tensor
    target: Tensor
    parts: Parts


def problem(name: str, trials: int) -> Problem:
    """One of the four tables."""
    data = packed("bridging")
    if name == "cocktail":
        matrix, target = pairs(data["cocktail"], data["cocktail_groups"])
    else:
        matrix, target = data[name].astype(np.float32), data[f"{name}_target"]
    splits = []
    for trial in range(trials):
        random = np.random.default_rng(trial)
        if name == "adult":
            known, test = np.flatnonzero(~data["adult_test"]), np.flatnonzero(data["adult_test"])
            splits.append((*_cut(random.permutation(known), 0.2), test))
        else:
            splits.append(split(len(target), random))
    return Problem(torch.from_numpy(matrix), torch.from_numpy(target).float(), Parts.of(splits))


def split(size: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """64, 16 and 20 % of the rows."""
    known, test = _cut(random.permutation(size), 0.2)
    return (*_cut(known, 0.2), test)


def _cut(rows: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    first = len(rows) - round(share * len(rows))
    return rows[:first], rows[first:]


def pairs(people: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a frame as 22 numbers, and whether the two are in different groups, the rarer class.

    Positions and directions of all six in the frame of the pair: its middle is the origin, and its line the first axis.
    Of the two themselves the second coordinate is 0, and left out. Which of them comes first is drawn.
    """
    random, rows, target = np.random.default_rng(0), [], []
    for frame, group in zip(people, groups, strict=True):
        for i, j in _PAIRS:
            first, second = (i, j) if random.random() < 0.5 else (j, i)
            others = [k for k in range(6) if k not in (i, j)]
            place = frame[:, :2] - (frame[first, :2] + frame[second, :2]) / 2
            angle = np.arctan2(*(frame[first, :2] - frame[second, :2])[::-1])
            turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
            place, look = place @ turn.T, frame[:, 2] - angle
            each = np.column_stack([place, np.cos(look), np.sin(look)])
            rows.append(np.concatenate([each[[first, second]][:, [0, 2, 3]].ravel(), each[others].ravel()]))
            target.append(group[i] != group[j])
    return np.array(rows, np.float32), np.array(target, np.uint8)


def images(name: str) -> tuple[Tensor, Tensor, int]:
    """Images ``(n, 3, 32, 32)`` as bytes (brightness and colour), classes, and how many of them are for training."""
    data = packed(name)
    if name == "mnist":
        stacked = np.concatenate([data["train"], data["test"]])[:, None]
        target = np.concatenate([data["train_target"], data["test_target"]])
        return torch.from_numpy(stacked), torch.from_numpy(target).long(), len(data["train"])
    planes = []
    for part in ("train", "test"):
        light, colour = (np.cumsum(data[f"{part}_{plane}"], -1, dtype=np.uint8) for plane in ("light", "colour"))
        planes.append(np.concatenate([light[:, None], colour.repeat(2, 2).repeat(2, 3)], 1))
    target = np.concatenate([data["train_target"], data["test_target"]])
    return torch.from_numpy(np.concatenate(planes)), torch.from_numpy(target).long(), len(data["train_target"])


def image_parts(known: int, total: int, trials: int, share: float, most: int | None = None) -> Parts:
    """A share of the training images to validate on, another in each trial; the test images are always the same."""
    splits = []
    for trial in range(trials):
        rows = np.random.default_rng(trial).permutation(known)[:most]
        splits.append((*_cut(rows, share), np.arange(known, total)[:most]))
    return Parts.of(splits)


class MessagePassing(Net):
    """A network over the people of a frame: rows are frames, scores are those of its 15 pairs, one after the other.

    People hold place (from the middle of all six) and direction, edges hold distances. In each round a person takes in
    the mean of the messages of the others; a pair is scored from the sum and the product of its two, and its distance.
    """

    def __init__(
        self, people: Tensor, trials: int, width: int, rounds: int, losses: int, seed: int, *, device: str = "cpu"
    ) -> None:
        super().__init__(losses, trials, device, seed)
        place, look = people[..., :2] - people[..., :2].mean(1, keepdim=True), people[..., 2:]
        self._nodes = torch.cat([place, look.cos(), look.sin()], -1).to(device)
        self._distance = torch.cdist(place, place).unsqueeze(-1).to(device)
        self._enter = self.dense((4, width))
        self._rounds = [(self.dense((2 * width + 1, width, width)), self.dense((2 * width, width)))
                        for _ in range(rounds)]  # fmt: skip
        self._head = self.dense((2 * width + 1, width, 1))
        self._first, self._second = torch.tensor(_PAIRS, device=device).unbind(1)
        self._others = (1 - torch.eye(6, device=device)).unsqueeze(-1)

    def __call__(self, rows: Tensor, *, training: bool) -> Tensor:
        frames = rows.shape[1]
        nodes, distance = self.spread(self._nodes[rows]), self.spread(self._distance[rows])  # members, frames, 6, …
        members = len(nodes)

        def dense(x: Tensor, layers: list[tuple[Tensor, Tensor]], *, last: bool = True) -> Tensor:
            return through(x.flatten(1, -2), layers, last=last).unflatten(1, x.shape[1:-1])

        h = dense(nodes, self._enter)
        for edge, node in self._rounds:
            sender = h.unsqueeze(2).expand(-1, -1, 6, -1, -1)
            message = dense(torch.cat([h.unsqueeze(3).expand_as(sender), sender, distance], -1), edge)
            h = h + dense(torch.cat([h, (message * self._others).sum(3) / 5], -1), node)
        a, b = h[:, :, self._first], h[:, :, self._second]
        z = dense(torch.cat([a + b, a * b, distance[:, :, self._first, self._second]], -1), self._head, last=False)
        return self.gather(z.reshape(members, frames * len(_PAIRS)))


def graph(trials: int) -> Problem:
    """The frames, and for each of their 15 pairs whether the two are in the same group."""
    data = packed("bridging")
    groups = data["cocktail_groups"]
    same = np.stack([groups[:, i] == groups[:, j] for i, j in _PAIRS], 1)
    splits = [split(len(groups), np.random.default_rng(trial)) for trial in range(trials)]
    return Problem(torch.from_numpy(data["cocktail"]), torch.from_numpy(same).float(), Parts.of(splits))
