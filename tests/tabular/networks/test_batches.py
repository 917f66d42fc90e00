"""Every member sees its own rows, in an order of its own, and all of them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepless.tabular.networks.batches import Batches, Data, padded


def uneven():
    """Three members of a table of 120 rows."""
    target = (torch.arange(120) % 4 == 0).float()
    rows = tuple(torch.arange(m, 120 - m) for m in range(3))
    return Data(torch.zeros(120, 4), target, rows, (torch.arange(5),) * 3)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    batch_size=st.integers(1, 30),
    stratify=st.booleans(),
    epoch=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_an_epoch_is_one_pass_for_the_largest_and_at_least_one_for_all(sizes, batch_size, stratify, epoch):
    x = torch.zeros(80, 1)
    target = (torch.arange(80) % 4 == 0).float()
    rows = tuple(torch.arange(size) + 3 for size in sizes)
    batches = Batches(Data(x, target, rows, (torch.arange(0),) * len(rows)), batch_size, stratify, range(len(rows)))
    order = batches.order(epoch)
    assert order.shape == (batches.steps, len(rows), batches.size)
    for m, own in enumerate(rows):
        seen, counts = order[:, m].unique(return_counts=True)
        assert torch.equal(seen, own)
        extra = order[:, m].numel() - len(own)
        assert counts.max() - counts.min() <= (1 if extra else 0)
    assert batches.steps * batches.size - max(sizes) < batches.steps
    assert torch.equal(order, batches.order(epoch))


def test_stratified_batches_have_their_share_of_every_class():
    target = (torch.rand(1000, generator=torch.Generator().manual_seed(0)) < 0.04).float()
    data = Data(torch.zeros(1000, 1), target, (torch.arange(1000),), (torch.arange(0),))
    positives = {
        stratify: [int(target[part].sum()) for e in range(20) for part in Batches(data, 50, stratify, (0,)).order(e)]
        for stratify in (True, False)
    }
    assert max(positives[True]) - min(positives[True]) <= 2
    assert min(positives[True]) >= 1
    assert min(positives[False]) == 0


def test_a_members_order_depends_on_its_own_seed_alone():
    data = uneven()
    both = Batches(data, 20, True, (4, 5, 6)).order(2)
    alone = Batches(replace(data, rows=data.rows[1:2], held=data.held[1:2]), 20, True, (5,)).order(2)
    assert torch.equal(both[:, 1], alone[:, 0])
    assert not torch.equal(Batches(data, 20, True, (4, 5, 6)).order(3), both)


def test_padding_marks_what_is_not_real():
    assert padded([torch.arange(3), torch.arange(3)])[1] is None
    index, real = padded([torch.arange(3), torch.arange(0)])
    assert index.shape == real.shape == (2, 3)
    assert real.sum(1).tolist() == [3.0, 0.0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"matrix": torch.zeros(120, 4, dtype=torch.float64)}, "float32 matrix; got torch.float64"),
        ({"matrix": torch.full((120, 4), torch.nan)}, "features must be finite"),
        ({"target": torch.zeros(119)}, "the target of 120 rows"),
        ({"target": torch.zeros(120, dtype=torch.int32)}, "the target of 120 rows"),
        ({"weight": torch.ones(3)}, "weights must be float32 of shape"),
        ({"weight": -torch.ones(120)}, "finite and not negative"),
        ({"rows": (torch.arange(3),)}, "name the same members; got 1 and 3"),
        ({"rows": (torch.arange(0),) * 3}, r"rows\[0\] must hold row indices"),
        ({"held": (torch.tensor([120]),) * 3}, r"held\[0\] must hold rows in \[0, 120\); got 120"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(uneven(), **change)
