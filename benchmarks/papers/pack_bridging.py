"""The data of *Bridging the Gap*, of EAST and of their images, small enough to travel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, np.ndarray]

#: Images that are packed: of CIFAR-10 as many as fit, of MNIST as many.
TRAIN_IMAGES, TEST_IMAGES = 17000, 5000
#: Of larger multiclass tables, as many rows; classes with fewer rows than the second cannot be split and are left out.
MOST_ROWS, LEAST_ROWS = 30000, 10


def bridging() -> Arrays:
    """CocktailParty, Adult, Mammography and creditcard."""
    from data import data_folder, manifest, read_table  # noqa: PLC0415 - pandas

    files = manifest()["file"]

    def table(name: str) -> pd.DataFrame:
        return read_table(data_folder() / files[name])

    people = table("cocktail_party_people").sort_values(["timestamp", "person"])
    adult = table("adult_uci").drop(columns="fnlwgt")
    test, income = adult.pop("split") == "test", adult.pop("income")
    for column in adult.columns[[not np.issubdtype(kind, np.number) for kind in map(_kind, adult.dtypes)]]:
        adult[column] = adult[column].astype("category").cat.codes
    mammography = table("mammography")
    cards = [table(f"creditcard_fraud_part{i}") for i in (1, 2)]
    stacked = np.concatenate([part.to_numpy(np.float64) for part in cards])
    names = list(cards[0].columns)
    amount = np.log(stacked[:, names.index("Amount")] + 0.001)
    return {
        "cocktail": people[["x", "y", "theta"]].to_numpy(np.float32).reshape(-1, 6, 3),
        "cocktail_groups": people["group_in_frame"].to_numpy(np.int16).reshape(-1, 6),
        "adult": adult.to_numpy(np.int32),
        "adult_target": income.astype(str).str.contains(">50K").to_numpy(np.uint8),
        "adult_test": test.to_numpy(),
        "mammography": mammography.drop(columns="class").to_numpy(np.float32),
        # the one row without a label is positive: the paper counts 260 positives, and 259 are labelled so
        "mammography_target": (mammography["class"] != -1).to_numpy(np.uint8),
        # half precision keeps three digits: half the size, and no column needs more
        "creditcard": np.column_stack(
            [stacked[:, [names.index(f"V{i}") for i in range(1, 29)]], amount]).astype(np.float16),
        "creditcard_target": stacked[:, names.index("Class")].astype(np.uint8),
    }  # fmt: skip


def _kind(dtype: object) -> type:
    return dtype.type if isinstance(dtype, np.dtype) else object


def cifar() -> Arrays:
    """CIFAR-10 as brightness at full and colour at half resolution (4:2:0), as photographs are kept; differences
    between neighbours compress better than the values do."""
    from data import data_folder  # noqa: PLC0415 - pandas
    from PIL import Image  # noqa: PLC0415 - not at hand where these files are read

    Image.MAX_IMAGE_PIXELS = None
    folder, arrays = data_folder() / "cifar10", {}
    for part, files, number in (
        ("train", ("data_batch_1.png", "data_batch_2.png"), TRAIN_IMAGES), ("test", ("test_batch.png",), TEST_IMAGES),
    ):  # fmt: skip
        images = np.concatenate([np.asarray(Image.open(folder / f)) for f in files])[:number].reshape(-1, 32, 32, 3)
        images = images.astype(np.float32)
        light = images @ np.array([0.299, 0.587, 0.114], np.float32)
        colour = np.stack([128 + 0.564 * (images[..., 2] - light), 128 + 0.713 * (images[..., 0] - light)], 1)
        colour = colour.reshape(-1, 2, 16, 2, 16, 2).mean((3, 5))
        for name, plane in (("light", light), ("colour", colour)):
            rounded = plane.round().clip(0, 255).astype(np.uint8)
            arrays[f"{part}_{name}"] = np.diff(rounded, axis=-1, prepend=np.uint8(0))
        labels = json.loads((folder / f"{part}_lables.json").read_text(encoding="utf-8"))
        arrays[f"{part}_target"] = np.array(labels[:number], np.uint8)
    return arrays


def mnist() -> Arrays:
    """The first images of MNIST's two parts."""
    from data import data_folder  # noqa: PLC0415 - pandas

    with np.load(data_folder() / "images" / "mnist.npz") as found:
        return {
            "train": found["x_train"][:TRAIN_IMAGES],
            "train_target": found["y_train"][:TRAIN_IMAGES],
            "test": found["x_test"][:TEST_IMAGES],
            "test_target": found["y_test"][:TEST_IMAGES],
        }


def east() -> Arrays:
    """The 13 multiclass tables: numbers as they are, an indicator for each category."""
    import pandas as pd  # noqa: PLC0415 - not at hand where these files are read
    from data import MULTICLASS, load_multiclass  # noqa: PLC0415 - pandas

    arrays = {}
    for name in MULTICLASS:
        table, target = load_multiclass(name)
        chosen = np.sort(np.random.default_rng(0).permutation(len(target))[:MOST_ROWS])
        chosen = chosen[np.bincount(target[chosen], minlength=target.max() + 1)[target[chosen]] >= LEAST_ROWS]
        matrix = pd.get_dummies(table).to_numpy(np.float32)[chosen]
        matrix = np.where(np.isnan(matrix), np.nanmean(matrix, 0), matrix)
        whole = (matrix == matrix.round()).all() and matrix.min() >= 0 and matrix.max() <= 255
        arrays[name] = matrix.astype(np.uint8 if whole else np.float32)
        arrays[f"{name}_target"] = np.unique(target[chosen], return_inverse=True)[1].astype(np.uint8)
    return arrays


PACKS = {"bridging": bridging, "cifar": cifar, "mnist": mnist, "east": east}
