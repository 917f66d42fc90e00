"""Lightning: schedules advance, epochs are scored exactly, and micro-batches accumulate exactly, also in real DDP."""

import subprocess
import sys
import warnings

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import stepless as sl
from stepless.integrations.lightning import MetricCallback, accumulate
from tests import ranks

ROWS = 48
TASKS = {"binary": 1, "multiclass": 3, "multilabel": 3}


def draw(task="binary", seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 4, generator=generator)
    if task == "binary":
        return x, (x[:, :1] > 0.3).float()
    return x, x[:, :3].argmax(1) if task == "multiclass" else (x[:, :3] > 0.2).long()


class Module(lightning.LightningModule):
    """Keeps what it has scored, to be scored again by hand."""

    def __init__(self, task="binary", metric="f1", micro_batches=0, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Linear(4, TASKS[task])
        self.loss_fn = sl.MetricLoss(metric, task=task, **settings)
        self.automatic_optimization, self.micro_batches = not micro_batches, micro_batches
        self.seen, self.progress = {"train": [], "val": [], "test": []}, []

    def forward(self, x):
        scores = self.model(x)
        if not self.micro_batches or not torch.is_grad_enabled():  # accumulation runs twice
            self.seen[self.trainer.state.stage.dataloader_prefix].append(scores.detach())
        return scores

    def training_step(self, batch, _):
        if self.loss_fn.schedule is not None:
            self.progress.append(float(self.loss_fn.progress))
        x, y = batch
        if not self.micro_batches:
            return self.loss_fn(self(x), target=y)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        parts = list(zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches), strict=True))
        loss = accumulate(self, self.loss_fn, parts)
        optimizer.step()
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss_fn(self(batch[0]), batch[1]))

    def test_step(self, batch):
        self.loss_fn(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.5)


def loader(task="binary", batch=16, rank=0, ranks=1, seed=0):
    rows = TensorDataset(*draw(task, seed))
    return DataLoader(rows, batch // ranks, sampler=DistributedSampler(rows, ranks, rank, shuffle=False))


def make_trainer(**settings):
    given = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "callbacks": [MetricCallback()], **settings}
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(**given, **quiet)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*num_workers.*|.*number of training batches.*|.*no `val_dataloader`.*|.*LeafSpec.*"
        )
        yield


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("metric", ["f1", "mcc", "auroc"])
def test_epochs_are_scored_whole(task, metric):
    module, trainer = Module(task, metric), make_trainer(max_epochs=1)
    trainer.fit(module, loader(task), loader(task, seed=1))
    for stage, seed in (("train", 0), ("val", 1)):
        expected = sl.score(torch.cat(module.seen[stage])[-ROWS:], draw(task, seed)[1], metric, task=task)
        assert trainer.callback_metrics[f"{stage}_{metric}"].item() == pytest.approx(expected.item(), abs=1e-6)
    (tested,) = trainer.test(module, loader(task, seed=2), verbose=False)
    expected = sl.score(torch.cat(module.seen["test"]), draw(task, 2)[1], metric, task=task)
    assert tested[f"test_{metric}"] == pytest.approx(expected.item(), abs=1e-6)
    assert not module.loss_fn._forward_hooks, "nothing is left behind"


def test_every_epoch_anew_and_validation_in_between():
    module = Module()
    trainer = make_trainer(max_epochs=2, val_check_interval=1)
    trainer.fit(module, loader(), loader(seed=1))
    last = torch.cat(module.seen["train"][-3:])
    assert trainer.callback_metrics["train_f1"].item() == pytest.approx(sl.score(last, draw()[1], "f1").item())
    last = torch.cat(module.seen["val"][-3:])
    assert trainer.callback_metrics["val_f1"].item() == pytest.approx(sl.score(last, draw(seed=1)[1], "f1").item())


def test_the_schedule_advances():
    module = Module(schedule=sl.Schedule(blend=(1.0, 0.0)))
    make_trainer(max_epochs=2).fit(module, loader())
    assert module.progress == pytest.approx([i / 6 for i in range(6)])
    module = Module(schedule=sl.Schedule(blend=(1.0, 0.0)))
    make_trainer(max_epochs=-1, max_steps=4).fit(module, loader())
    assert module.progress == pytest.approx([0, 0.25, 0.5, 0.75])


@pytest.mark.parametrize("every", [2, 3, 4])
@pytest.mark.parametrize("validated", [False, True])
def test_training_goes_on_from_a_checkpoint_within_an_epoch(tmp_path, every, validated):
    """Three batches an epoch; the checkpoint is at the last one where it is made after three."""

    def fit(module, **given):
        keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=every, save_top_k=-1)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=3, callbacks=[MetricCallback(), keep], logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loader(), loader(seed=1) if validated else None, **given)
        return trainer

    whole, again = (Module(schedule=sl.Schedule(blend=(1.0, 0.0))) for _ in range(2))
    expected = fit(whole).callback_metrics["train_f1"]
    trainer = fit(again, ckpt_path=tmp_path / f"step={every}.ckpt")
    assert trainer.callback_metrics["train_f1"] > 0
    if every == 3:  # within an epoch Lightning begins with the loader's first rows again
        torch.testing.assert_close(again.model.weight, whole.model.weight)
        torch.testing.assert_close(trainer.callback_metrics["train_f1"], expected)
    assert again.progress == pytest.approx([step / 9 for step in range(every, 9)])


class Interrupted(Module):
    """Stops in the middle of its second epoch, once."""

    stops = True

    def training_step(self, batch, i):
        if self.stops and self.current_epoch == 1 and i == 2:
            raise KeyboardInterrupt
        return super().training_step(batch, i)


def test_an_epoch_that_was_interrupted_is_not_counted_with_the_next(tmp_path):
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[MetricCallback(), keep], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Interrupted()
    with pytest.raises(SystemExit):  # how Lightning takes leave of a keyboard
        trainer.fit(module, loader())
    module.stops, module.seen["train"] = False, []
    trainer.fit(module, loader(), ckpt_path="last")
    since = torch.cat(module.seen["train"])
    assert 0 < len(since) < ROWS
    expected = sl.score(since, draw()[1][: len(since)], "f1")  # within an epoch Lightning begins with the first rows
    assert trainer.callback_metrics["train_f1"].item() == pytest.approx(expected.item(), abs=1e-6)


def test_no_end_in_sight():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(4), torch.ones(1)

    module = Module(schedule=sl.Schedule(blend=(1.0, 0.0)))
    with pytest.raises(RuntimeError, match="a schedule needs to know when training ends; give the Trainer max_steps="):
        make_trainer(max_epochs=1, limit_train_batches=None).fit(module, DataLoader(Endless(), 4))
    assert not module.loss_fn._forward_hooks


class Skipping(Module):
    """A module whose second batch of the first epoch overflows, and which passes over it."""

    def training_step(self, batch, i):
        scores = self(batch[0])
        if i == 1 and self.current_epoch == 0:
            scores = scores * torch.nan
        loss = self.loss_fn(scores, batch[1])
        return None if loss.isnan() else loss


@pytest.mark.parametrize("metric", ["f1", "auroc"])
def test_a_batch_of_nan_is_no_end(metric):
    trainer = make_trainer(max_epochs=1)
    trainer.fit(Skipping(metric=metric), loader(), loader(seed=1))
    assert trainer.callback_metrics[f"train_{metric}"].isnan(), "what is not known is not made up"
    assert trainer.callback_metrics[f"val_{metric}"].isfinite()
    trainer = make_trainer(max_epochs=2)
    trainer.fit(Skipping(metric=metric), loader())
    assert trainer.callback_metrics[f"train_{metric}"].isfinite(), "the next epoch is another"


def test_values_are_checked_once_an_epoch_in_training_and_always_in_validation():
    def labelled(*shifts):
        x, y = draw()
        return DataLoader(TensorDataset(x, y + torch.tensor(shifts).repeat_interleave(16)[:, None]), 16)

    with pytest.raises(ValueError, match=r"targets must be 0 or 1, .*; got 2"):
        make_trainer().fit(Module(), labelled(1, 0, 0))
    with pytest.raises(ValueError, match=r"targets must be 0 or 1, .*; got 2"):
        make_trainer().validate(Module(), labelled(0, 0, 1), verbose=False)


class TwoLosses(Module):
    def __init__(self):
        super().__init__()
        self.other = sl.MetricLoss("mcc")

    def training_step(self, batch, i):
        return super().training_step(batch, i) + self.other(self(batch[0]), batch[1])


def test_several_losses_bear_their_names():
    trainer = make_trainer(max_epochs=1)
    trainer.fit(TwoLosses(), loader())
    assert {"train_loss_fn_f1", "train_other_mcc"} <= set(trainer.callback_metrics)


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_compiled_is_counted_outside_of_the_graph(whole, caplog):
    torch.compiler.reset()
    module, trainer, plain = TwoLosses(), make_trainer(max_epochs=1), make_trainer(max_epochs=1)
    plain.fit(TwoLosses(), loader(), loader(seed=1))
    if not whole:
        module.other = torch.compile(module.other, backend="eager")
    with caplog.at_level("WARNING", logger="torch._dynamo"):
        trainer.fit(torch.compile(module, backend="eager") if whole else module, loader(), loader(seed=1))
    assert "stepless" not in caplog.text, "tracing the counts breaks off at every look at a value"
    for name in ("train_loss_fn_f1", "train_other_mcc", "val_loss_fn_f1"):
        assert trainer.callback_metrics[name].item() == pytest.approx(plain.callback_metrics[name].item(), abs=1e-6)


def whole_batch(task, batch, epochs, **settings):
    """The weights that plain torch finds."""
    module = Module(task, **settings)
    optimizer = module.configure_optimizers()
    x, y = draw(task)
    for _ in range(epochs):
        for rows in torch.arange(ROWS).split(batch):
            optimizer.zero_grad()
            module.loss_fn(module.model(x[rows]), y[rows]).backward()
            optimizer.step()
    return module.model.weight.detach()


@pytest.mark.parametrize("task", TASKS)
def test_accumulation_is_exact(task):
    module, trainer = Module(task, micro_batches=4), make_trainer()
    trainer.fit(module, loader(task))
    torch.testing.assert_close(module.model.weight, whole_batch(task, 16, 2), rtol=1e-5, atol=1e-6)
    expected = sl.score(torch.cat(module.seen["train"][-12:]), draw(task)[1], "f1", task=task)
    assert trainer.callback_metrics["train_f1"].item() == pytest.approx(expected.item(), abs=1e-6)


def test_accumulation_of_a_ranking():
    module = Module(metric="auroc", micro_batches=2)
    make_trainer().fit(module, loader())
    torch.testing.assert_close(module.model.weight, whole_batch("binary", 16, 2, metric="auroc"))


def test_accumulation_in_bfloat16():
    module = Module(micro_batches=2)
    make_trainer(precision="bf16-mixed").fit(module, loader())
    torch.testing.assert_close(module.model.weight, whole_batch("binary", 16, 2), rtol=0.05, atol=0.02)


def test_errors():
    module = Module()
    module.loss_fn = nn.BCEWithLogitsLoss()
    with pytest.raises(ValueError, match=r"MetricCallback found no .*MetricLoss in Module; make it an attribute"):
        make_trainer().validate(module, loader(), verbose=False)
    with pytest.raises(RuntimeError, match=r"set self\.automatic_optimization = False"):
        accumulate(Module(), sl.MetricLoss("f1"), [])
    with pytest.warns(UserWarning, match="accumulate_grad_batches=3 averages the micro-batches' own losses"):
        make_trainer(accumulate_grad_batches=3).fit(Module(), loader())


def train_rank(rank, world, task, micro_batches):
    with ranks.as_torchrun(rank, world, GROUP_RANK=0, TORCHELASTIC_RUN_ID="test"):
        module, trainer = Module(task, micro_batches=micro_batches), make_trainer(devices=world, strategy="ddp")
        trainer.fit(module, loader(task, 16, rank, world), loader(task, 16, rank, world, seed=1))
        return module.model.weight.detach(), {k: v.item() for k, v in trainer.callback_metrics.items()}


@pytest.mark.parametrize(("task", "micro_batches"), [("binary", 0), ("binary", 4), ("multiclass", 2)])
def test_two_processes_are_one(task, micro_batches):
    module, trainer = Module(task), make_trainer()
    trainer.fit(module, loader(task), loader(task, seed=1))
    for weight, logged in ranks.run(train_rank, 2, 2, task, micro_batches):
        torch.testing.assert_close(weight, module.model.weight.detach(), rtol=1e-4, atol=1e-6)
        for name in ("train_f1", "val_f1"):
            assert logged[name] == pytest.approx(trainer.callback_metrics[name].item(), abs=1e-6)


class TwoHeads(Module):
    """Two losses, one for each half of the columns, which skip the rows that have no label of theirs."""

    def __init__(self):
        super().__init__("multilabel")
        self.loss_fn, self.other = sl.MetricLoss("f1"), sl.MetricLoss("f1")

    def training_step(self, batch, _):
        scores = self(batch[0])
        return self.loss_fn(scores[:, 0], batch[1][:, 0]) + self.other(scores[:, 1], batch[1][:, 1])

    def validation_step(self, batch, _):
        scores = self(batch[0])
        for head, loss_fn in enumerate((self.loss_fn, self.other)):
            known = batch[1][:, head] >= 0
            if known.any():
                loss_fn(scores[known, head], batch[1][known, head])


def sparse_labels(hidden):
    x, y = draw("multilabel")
    y[hidden] = -1
    return x, y


def validate_rank(rank, world, hidden):
    with ranks.as_torchrun(rank, world, GROUP_RANK=0, TORCHELASTIC_RUN_ID="test"):
        x, y = sparse_labels(hidden)
        part = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        module, trainer = TwoHeads(), make_trainer(devices=world, strategy="ddp", use_distributed_sampler=False)
        trainer.validate(module, DataLoader(TensorDataset(x[part], y[part]), 8), verbose=False)
        return {k: v.item() for k, v in trainer.callback_metrics.items()}


@pytest.mark.parametrize(
    "hidden", [(slice(ROWS // 2, ROWS // 2 + 8), 0), (slice(ROWS // 2, None), 1)], ids=["first of a rank", "all of it"]
)
def test_ranks_may_call_their_losses_in_another_order_or_not_at_all(hidden):
    x, y = sparse_labels(hidden)
    scores = TwoHeads().model(x).detach()
    for logged in ranks.run(validate_rank, 2, 2, hidden):
        for head, name in enumerate(("loss_fn", "other")):
            known = y[:, head] >= 0
            expected = sl.score(scores[known, head], y[known, head], "f1").item()
            assert logged[f"val_{name}_f1"] == pytest.approx(expected, abs=1e-6)


class TwoLoaders(Module):
    def validation_step(self, batch, _, dataloader_idx=0):
        self.loss_fn(self(batch[0]), batch[1])


def test_each_loader_is_scored_by_itself():
    module, trainer = TwoLoaders(), make_trainer()
    trainer.validate(module, [loader(), loader(seed=1)], verbose=False)
    for place in (0, 1):
        x, y = draw(seed=place)
        expected = sl.score(module.model(x).detach(), y, "f1").item()
        assert trainer.callback_metrics[f"val_f1/dataloader_idx_{place}"].item() == pytest.approx(expected, abs=1e-6)


class Together(Module):
    def validation_step(self, batches, _):
        for x, y in batches.values():
            self.loss_fn(self(x), y)


def test_loaders_that_are_read_together_are_one():
    loaders = lightning.pytorch.utilities.CombinedLoader({"a": loader(), "b": loader(seed=1)}, "max_size")
    module, trainer = Together(), make_trainer()
    trainer.validate(module, loaders, verbose=False)
    x, y = (torch.cat(parts) for parts in zip(draw(), draw(seed=1), strict=True))
    expected = sl.score(module.model(x).detach(), y, "f1").item()
    assert trainer.callback_metrics["val_f1"].item() == pytest.approx(expected, abs=1e-6)


def test_missing():
    code = "import sys; sys.modules['lightning'] = None; import stepless.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'stepless.integrations.lightning needs lightning: pip install "stepless[lightning]"' in done.stderr
