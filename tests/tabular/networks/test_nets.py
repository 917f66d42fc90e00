"""Many networks as one are the networks one by one."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stepless.tabular.networks.factories import FactoryMembers
from stepless.tabular.networks.nets import Architecture, Members, mixed

shapes = st.builds(
    lambda kind, inputs, outputs, hidden: Architecture(kind, inputs, outputs, hidden if kind == "mlp" else None),
    st.sampled_from(["mlp", "linear"]),
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
)


def random_rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_random_biases(members):
    """Away from the kinks: with all biases 0, a dead layer feeds exact zeros to the next."""
    with torch.no_grad():
        for i, bias in enumerate(members.biases):
            bias.copy_(random_rows(*bias.shape, seed=100 + i))
    return members


@given(shapes, st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_members_together_are_the_members_one_by_one(architecture, seeds):
    together = Members(architecture, len(seeds), seeds)
    x = random_rows(len(seeds), 9, architecture.inputs)
    for m, seed in enumerate(seeds):
        alone = Members(architecture, 1, [seed])
        torch.testing.assert_close(together(x)[m], alone(x[m])[0])
        torch.testing.assert_close(together(x[m])[m], alone(x[m])[0])
    assert together(x[0]).shape == (len(seeds), 9, architecture.outputs)


def test_a_member_is_a_plain_torch_network():
    members = with_random_biases(Members(Architecture("mlp", 5, 3, (8, 6)), 2, (3, 4)))
    layers = []
    for weight, bias in zip(members.weights, members.biases, strict=True):
        layer = nn.Linear(*weight.shape[1:])
        layer.weight.data, layer.bias.data = weight[1].T, bias[1, 0]
        layers += [layer, nn.ReLU()]
    x = random_rows(20, 5)
    torch.testing.assert_close(members(x)[1], nn.Sequential(*layers[:-1])(x))


@given(shapes, st.sampled_from([0.0, 0.4]))
@settings(max_examples=40, deadline=None)
def test_the_pass_without_a_graph_gives_torchs_gradients(architecture, dropout):
    dropout = dropout if architecture.kind == "mlp" else 0.0
    entry = {**architecture.to_json(), "dropout": dropout}
    members = with_random_biases(Members(Architecture.from_json(entry), 2, (0, 1))).double()
    x, slope = random_rows(2, 7, architecture.inputs).double(), random_rows(2, 7, architecture.outputs, seed=1).double()
    members.reseed(5)
    logits = members(x)
    expected = torch.autograd.grad(logits, list(members.parameters()), slope)
    members.reseed(5)
    found, tape = members.run(x)
    assert not found.requires_grad
    torch.testing.assert_close(found, logits.detach())
    for own, theirs in zip(members.pull(tape, slope), expected, strict=True):
        torch.testing.assert_close(own, theirs)


def test_dropout_rests_units_in_training_by_each_members_own_seed():
    architecture = Architecture("mlp", 4, 1, (50,), dropout=0.5)
    both, alone = Members(architecture, 2, (7, 8)), Members(architecture, 1, (8,))
    x = random_rows(30, 4)
    for members in (both, alone):
        members.reseed(3)
    torch.testing.assert_close(both(x)[1], alone(x)[0])
    assert not torch.equal(both(x), both(x))
    both.eval()
    assert torch.equal(both(x), both(x))
    # what does not rest is scaled, so that the mean stays
    both.train()
    mean = torch.stack([both(x) for _ in range(400)]).mean(0)
    assert (mean - both.eval()(x)).abs().mean() < 0.1


def test_nothing_draws_from_torchs_own_random_numbers():
    before = torch.get_rng_state()
    Members(Architecture("mlp", 3, 1, (4,), dropout=0.5), 2, (0, 1))(random_rows(5, 3))
    FactoryMembers(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)), 2, (0, 1))(
        random_rows(5, 3)
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_tensors_come_back_as_the_same_members():
    members = Members(Architecture("mlp", 3, 2, (4,)), 3, (0, 1, 2))
    tensors = members.tensors()
    assert {name: tuple(t.shape) for name, t in tensors.items()} == members.architecture.shapes(3)
    again = Members.from_tensors(members.architecture, tensors)
    x = random_rows(6, 3)
    assert again.n == 3
    assert torch.equal(again(x), members(x))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: {**t, "more": torch.ones(1)}, "has tensors of the shapes"),
        (lambda t: {k: v for k, v in t.items() if k != "biases.1"}, "has tensors of the shapes"),
        (lambda t: {**t, "weights.0": t["weights.0"][:, :2]}, "has tensors of the shapes"),
        (lambda t: {**t, "weights.0": t["weights.0"].double()}, "weights are float32"),
        (lambda t: {}, "has tensors of the shapes"),
        (lambda t: {k: v[:0] for k, v in t.items()}, "has tensors of the shapes"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, sentence):
    members = Members(Architecture("mlp", 3, 2, (4,)), 3, (0, 1, 2))
    with pytest.raises(ValueError, match=sentence):
        Members.from_tensors(members.architecture, change(members.tensors()))


@given(shapes)
def test_an_architecture_survives_json(architecture):
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("tree", 3, 1), '"mlp" or "linear"'),
        (("mlp", 0, 1), "inputs must be a whole number above 0; got 0"),
        (("mlp", 3, 1.5), "outputs must be a whole number above 0; got 1.5"),
        (("mlp", 3, True), "outputs must be"),
        (("mlp", 3, 1, (8, 0)), "hidden must hold the widths"),
        (("mlp", 3, 1, "64"), "hidden must hold the widths"),
        (("mlp", 3, 1, ()), 'at least one hidden layer; got none. Use "linear" for that'),
        (("linear", 3, 1, (8,)), "has no hidden layers"),
        (("mlp", 3, 1, (8,), 1.0), "dropout is a share"),
        (("linear", 3, 1, None, 0.1), "has no effect"),
    ],
)
def test_an_impossible_architecture_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Architecture(*settings)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"kind": "mlp"},
        {"kind": "mlp", "inputs": 3, "outputs": 1, "hidden": [4], "dropout": 0.0, "more": 1},
        {"kind": ["mlp"], "inputs": 3, "outputs": 1, "hidden": [4], "dropout": 0.0},
        {"kind": "mlp", "inputs": 3, "outputs": 1, "hidden": "44", "dropout": 0.0},
        {"kind": "mlp", "inputs": "3", "outputs": 1, "hidden": [4], "dropout": 0.0},
        {"kind": "mlp", "inputs": 3, "outputs": 1, "hidden": [[4]], "dropout": 0.0},
        {"kind": "mlp", "inputs": 3, "outputs": 1, "hidden": [4], "dropout": float("nan")},
    ],
)
def test_json_of_anything_else_is_refused(entry):
    with pytest.raises(ValueError, match=r"architecture|inputs|hidden|dropout"):
        Architecture.from_json(entry)


@pytest.mark.parametrize("seeds", [(), (1,), (1, 2, 3), (1, -1), (1, 0.5)])
def test_every_member_needs_a_seed(seeds):
    with pytest.raises(ValueError, match="every one of the 2 members has a seed"):
        Members(Architecture("linear", 2, 1), 2, seeds)


def test_seeds_mix_without_running_into_each_other():
    seeds = {mixed(a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**63 for seed in seeds)


# ---------------------------------------------------------------------------------------------------------------------
# Modules of a user's own making
# ---------------------------------------------------------------------------------------------------------------------


def plain():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def normalised():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Branching(nn.Module):
    """Nothing that vmap can run: Python looks at a value."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        z = self.linear(self.norm(x))
        return z if z.sum().item() > 0 else -z


@pytest.mark.parametrize("factory", [plain, normalised, Branching])
@pytest.mark.parametrize("shared", [True, False])
def test_factory_members_are_their_modules_one_by_one(factory, shared):
    members = FactoryMembers(factory, 3, (5, 6, 7))
    modules = []
    for seed in (5, 6, 7):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules.append(factory())
    x = random_rows(3, 10, 4)
    parts = [x[0]] * 3 if shared else list(x)
    given_x = x[0] if shared else x
    for _ in range(2):  # in training the running means move
        torch.testing.assert_close(members(given_x), torch.stack([m(p) for m, p in zip(modules, parts, strict=True)]))
    members.eval()
    expected = torch.stack([m.eval()(p) for m, p in zip(modules, parts, strict=True)])
    torch.testing.assert_close(members(given_x), expected)
    for name, tensor in members.tensors().items():
        for own, module in zip(tensor, modules, strict=True):
            torch.testing.assert_close(own, module.state_dict()[name])


@pytest.mark.parametrize("factory", [plain, normalised, Branching])
def test_factory_members_pull_gradients_back(factory):
    members = FactoryMembers(factory, 2, (0, 1)).double()
    x, slope = random_rows(2, 10, 4).double(), random_rows(2, 10, 2, seed=1).double()
    with torch.no_grad():  # as in training, where no graph is wanted but this one
        logits, tape = members.run(x)
        found = members.pull(tape, slope)
    expected = torch.autograd.grad(members(x), list(members.parameters()), slope)
    assert not logits.requires_grad
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own, theirs)
        assert own.is_contiguous()  # or torch's fused optimiser would mix up its entries


def test_a_module_that_vmap_runs_on_shared_rows_only_is_looped():
    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x[:, :1]

    members = FactoryMembers(lambda: Branch(4, 1), 2, (0, 1))
    x = random_rows(2, 5, 4)
    assert members(x[0]).shape == (2, 5, 1)  # vmap does not batch the rows, so Python may look at them
    torch.testing.assert_close(members(x), torch.stack([members(part)[i] for i, part in enumerate(x)]))


class Moving(nn.Linear):
    """Running means that are assigned, as in ``self.mean = …``, and not written into the buffer."""

    def __init__(self, looped=False):
        super().__init__(4, 2)
        self.looped = looped
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.looped:
            x.sum().item()  # which vmap cannot do
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


@pytest.mark.parametrize("looped", [False, True])
def test_a_buffer_may_be_assigned(looped):
    members = FactoryMembers(lambda: Moving(looped), 3, (0, 1, 2))
    x = random_rows(3, 10, 4)
    for _ in range(2):
        members.run(x)
    assert members._looped == looped
    torch.testing.assert_close(members.tensors()["mean"], 0.19 * x.mean(1))


def test_a_buffer_that_becomes_another_is_refused():
    class Growing(Moving):
        def forward(self, x):
            self.mean = x
            return nn.Linear.forward(self, x)

    with pytest.raises(ValueError, match=r"its buffer mean torch.float32 of shape \(4,\), .* of shape \(5, 4\)"):
        FactoryMembers(Growing, 2, (0, 1))(random_rows(5, 4))


@pytest.mark.parametrize("looped", [False, True])
def test_a_module_may_change_its_rows_in_place(looped):
    class Scaling(nn.Linear):
        def forward(self, x):
            scale = x.sum().item() if looped else 2.0
            return super().forward(x.mul_(scale))

    members = FactoryMembers(lambda: Scaling(4, 1), 3, (0, 1, 2))
    x = random_rows(5, 4)
    kept = x.clone()
    together = members(x)
    assert torch.equal(x, kept)
    torch.testing.assert_close(together, members(x.expand(3, -1, -1)))


def test_threads_may_share_members():
    members = FactoryMembers(lambda: nn.Sequential(nn.LSTM(4, 8), Last(), nn.Linear(8, 1)), 3, (0, 1, 2)).eval()
    parts = [random_rows(200, 4, seed=seed) for seed in range(40)]
    with torch.no_grad():
        expected = [members(part) for part in parts]
        state = torch.get_rng_state()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(torch.no_grad()(members), parts))
    assert all(torch.equal(own, theirs) for own, theirs in zip(found, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


class Last(nn.Module):
    """The outputs of a recurrent layer without its states."""

    def forward(self, both):
        return both[0]


def test_numbers_that_are_no_weights_are_refused():
    class Chosen(nn.Linear):
        def __init__(self):
            super().__init__(2, 1)
            self.columns = torch.randperm(40)[:2]

        def forward(self, x):
            return super().forward(x[:, self.columns])

    class Kept(Chosen):
        def __init__(self):
            super().__init__()
            columns = self.columns
            del self.columns
            self.register_buffer("columns", columns)

    class Drawing(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, training=True))

    x = random_rows(20, 40)
    with pytest.raises(ValueError, match=r"neither parameters nor buffers.*register_buffer"):
        FactoryMembers(Chosen, 2, (5, 6)).check_rebuilt(Chosen, x)
    for factory in (Kept, lambda: Drawing(40, 1)):
        FactoryMembers(factory, 2, (5, 6)).check_rebuilt(factory, x)


class AloneBackward(torch.autograd.Function):
    """A gradient that vmap cannot find, as that of torch's attention on CUDA."""

    @staticmethod
    def forward(z):
        return z.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        if slope.dim() == 3:
            raise RuntimeError("of one member alone")
        return 2 * slope

    @staticmethod
    def vmap(info, dims, z):
        return AloneBackward.apply(z), dims[0]


def test_a_module_whose_gradient_vmap_cannot_find_is_looped():
    class Alone(nn.Linear):
        def forward(self, x):
            return AloneBackward.apply(super().forward(x))

    members = FactoryMembers(lambda: Alone(4, 1), 2, (0, 1))
    x, slope = random_rows(2, 5, 4), random_rows(2, 5, 1, seed=1)
    logits, tape = members.run(x)
    torch.testing.assert_close(logits, members.eval()(x))
    weights, _ = members.pull(tape, slope)
    torch.testing.assert_close(weights, 2 * (slope.mT @ x))


def test_a_module_that_computes_again_in_backward_is_refused():
    """By then the template no longer holds the weights of the member."""

    class Again(nn.Sequential):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    members = FactoryMembers(lambda: Again(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), 2, (0, 1))
    logits, tape = members.run(random_rows(2, 5, 4))
    with pytest.raises(ValueError, match="must not compute anything again in backward"):
        members.pull(tape, torch.ones_like(logits))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_logits_of_another_precision_become_that_of_the_rows(dtype):
    members = FactoryMembers(lambda: CastLinear(dtype), 2, (0, 1))
    logits, tape = members.run(random_rows(5, 4))
    assert logits.dtype == torch.float32
    assert all(slope.dtype == dtype for slope in members.pull(tape, torch.ones_like(logits)))


class CastLinear(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.linear, self.dtype = nn.Linear(4, 1, dtype=dtype), dtype

    def forward(self, x):
        return self.linear(x.to(self.dtype))


def test_a_parameter_that_is_not_used_has_a_gradient_of_zero():
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.spare = nn.Parameter(torch.ones(3))

    members = FactoryMembers(Spare, 2, (0, 1))
    logits, tape = members.run(random_rows(5, 4))
    slopes = dict(zip(members.tensors(), members.pull(tape, torch.ones_like(logits)), strict=True))
    assert torch.equal(slopes["spare"], torch.zeros(2, 3))


def test_the_random_layers_of_a_factory_repeat_with_the_epoch():
    members = FactoryMembers(lambda: nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 1)), 2, (0, 1))
    x, seen = random_rows(10, 4), []
    for epoch in (0, 1, 0):
        members.reseed(epoch)
        seen.append(members(x))
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_factory_tensors_come_back():
    members = FactoryMembers(normalised, 2, (0, 1))
    members(random_rows(10, 4))
    again = FactoryMembers.from_tensors(normalised, members.tensors())
    x = random_rows(6, 4, seed=1)
    assert torch.equal(again.eval()(x), members.eval()(x))
    with pytest.raises(ValueError, match=r"does not fit the saved one: 1\.num_batches_tracked.*Give the factory"):
        FactoryMembers.from_tensors(plain, members.tensors())
    with pytest.raises(ValueError, match="does not fit the saved one"):
        FactoryMembers.from_tensors(plain, {})


def test_a_module_may_give_one_logit_a_row():
    members = FactoryMembers(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), 2, (0, 1))
    assert members(random_rows(5, 4)).shape == (2, 5, 1)


@pytest.mark.parametrize(
    ("factory", "error", "sentence"),
    [
        (lambda module=nn.Linear(2, 1): module, ValueError, "must build a new one on every call"),  # noqa: B008
        (lambda: 3, TypeError, "must build a torch.nn.Module; got int"),
        (lambda: nn.LazyLinear(3), ValueError, "holds a LazyLinear, whose size is not known"),
        (nn.ReLU, ValueError, "has no parameters to train"),
        (lambda: nn.Linear(4, 1).requires_grad_(False), ValueError, "give it some that require a gradient"),
    ],
)
def test_a_factory_that_builds_no_members_is_refused(factory, error, sentence):
    with pytest.raises(error, match=sentence):
        FactoryMembers(factory, 2, (0, 1))


def test_a_module_with_other_outputs_is_refused():
    members = FactoryMembers(lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))), 2, (0, 1))
    with pytest.raises(ValueError, match=r"logits of shape \(rows, outputs\); for 5 rows it gave \(5, 2, 3\)"):
        members(random_rows(5, 4))
