"""The Trainer of transformers trains tiny models on a metric; in two real processes the gradient is that of one."""

import contextlib
import subprocess
import sys

import pytest
import torch
import transformers
from torch.utils.data import Dataset

import stepless as sl
from stepless.integrations.transformers import TrainerLoss
from tests import ranks

ROWS, TOKENS, WORDS = 32, 6, 12
#: Task, settings of the loss, and how many scores the head has.
HEADS = {
    "one score": ("binary", "f1", 1),
    "two scores": ("binary", "f1", 2),
    "multiclass": ("multiclass", "mcc", 3),
    "multilabel": ("multilabel", "f1", 3),
    "tokens": ("multiclass", "f1", 3),
    "ranking": ("binary", "auroc", 1),
}


class Sentences(Dataset):
    """Words drawn at random; what they are labelled by can be read off single words."""

    def __init__(self, head, rows=ROWS):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(3, WORDS, (rows, TOKENS), generator=generator)
        first = self.words[:, 0] % 3
        self.labels = {
            "multiclass": first,
            "multilabel": torch.stack([(self.words == word).any(1) for word in (3, 4, 5)], 1).float(),
            "tokens": torch.where(torch.arange(TOKENS) < 4, self.words % 3, -100),
        }.get(head, (first == 0).float() if HEADS[head][2] == 1 else (first == 0).long())

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": self.labels[i]}


def make_model(head):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=TOKENS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=HEADS[head][2],
    )  # fmt: skip
    kind = transformers.BertForTokenClassification if head == "tokens" else transformers.BertForSequenceClassification
    return kind(config)


def make_trainer(head, folder, loss_settings=(), per_micro_batch=False, model=None, **settings):
    task, metric, _ = HEADS[head]
    loss = TrainerLoss(sl.MetricLoss(metric, task=task, **dict(loss_settings)), per_micro_batch=per_micro_batch)
    given = {"max_steps": 3, "per_device_train_batch_size": 16, "learning_rate": 0.1, "optim": "sgd", **settings}
    args = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], save_strategy="no", lr_scheduler_type="constant",
        max_grad_norm=0.0, disable_tqdm=True, logging_steps=1, dataloader_pin_memory=False, seed=0, **given,
    )  # fmt: skip
    return transformers.Trainer(
        model or make_model(head), args, train_dataset=Sentences(head), eval_dataset=Sentences(head),
        compute_loss_func=loss, compute_metrics=loss.compute_metrics, callbacks=[loss],
    )  # fmt: skip


def in_order(trainer):
    """Rows in their order, so that every way of sharing them out sees the same batches."""
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    return trainer


def scores_of(model, head, words, labels):
    logits = model(input_ids=words).logits
    if head == "two scores":
        return logits[:, 1] - logits[:, 0], labels
    return (logits.mT if head == "tokens" else logits), labels


def by_hand(head, steps=3, batch=16, parts=1):
    """The weights and losses that plain torch finds; with parts, the mean of the losses of parts of a batch."""
    task, metric, _ = HEADS[head]
    model, loss_fn, rows, losses = make_model(head), sl.MetricLoss(metric, task=task), Sentences(head), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.arange(ROWS).split(batch) * steps
    for chosen in batches[:steps]:
        optimizer.zero_grad()
        loss = sum(loss_fn(*scores_of(model, head, rows.words[i], rows.labels[i])) for i in chosen.chunk(parts)) / parts
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return flat(model), losses


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def logged(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("head", HEADS)
def test_every_head_trains_as_by_hand(head, tmp_path):
    trainer = in_order(make_trainer(head, tmp_path))
    trainer.train()
    weights, losses = by_hand(head)
    torch.testing.assert_close(flat(trainer.model), weights, rtol=1e-4, atol=1e-6)
    assert logged(trainer) == pytest.approx(losses, abs=1e-4)
    metrics, rows = trainer.evaluate(), Sentences(head)
    with torch.no_grad():
        expected = trainer.compute_loss_func.loss_fn.score(
            *scores_of(trainer.model.eval(), head, rows.words, rows.labels)
        )
    assert metrics[f"eval_{HEADS[head][1]}"] == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("head", ["two scores", "multiclass"])
def test_it_learns(head, tmp_path):
    trainer = make_trainer(head, tmp_path, max_steps=60, learning_rate=0.03, optim="adamw_torch")
    trainer.train()
    assert trainer.evaluate()[f"eval_{HEADS[head][1]}"] > 0.9


def test_the_schedule_advances_and_evaluation_leaves_no_trace(tmp_path):
    loss_settings = {"schedule": sl.Schedule(blend=(1.0, 0.0)), "memory": sl.Memory(4)}
    trainer = make_trainer("two scores", tmp_path, loss_settings, max_steps=4, eval_strategy="steps", eval_steps=1)
    loss_fn, seen = trainer.compute_loss_func.loss_fn, []
    loss_fn.register_forward_hook(lambda loss_fn, *_: seen.append((loss_fn.training, float(loss_fn.progress))))
    trainer.train()
    assert [progress for training, progress in seen if training] == pytest.approx([0, 0.25, 0.5, 0.75])
    assert not all(training for training, _ in seen)
    before = loss_fn.remembered.clone()
    trainer.evaluate()
    assert torch.equal(before, loss_fn.remembered)


def test_accumulation_is_refused_or_the_mean(tmp_path):
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2: the Trainer runs micro-batches apart, .*"):
        make_trainer("two scores", tmp_path, gradient_accumulation_steps=2).train()
    trainer = in_order(
        make_trainer(
            "two scores", tmp_path, per_micro_batch=True, gradient_accumulation_steps=2, per_device_train_batch_size=8
        )
    )
    trainer.train()
    weights, losses = by_hand("two scores", parts=2)
    torch.testing.assert_close(flat(trainer.model), weights, rtol=1e-4, atol=1e-6)
    assert logged(trainer) == pytest.approx(losses, abs=1e-4)


@pytest.mark.parametrize("head", ["two scores", "tokens"])
def test_a_model_may_return_more_than_logits(head, tmp_path):
    expected = make_trainer(head, tmp_path).evaluate()[f"eval_{HEADS[head][1]}"]
    for concatenated in (True, False):
        trainer = make_trainer(head, tmp_path, eval_do_concat_batches=concatenated, per_device_eval_batch_size=10)
        assert trainer.evaluate()[f"eval_{HEADS[head][1]}"] == pytest.approx(expected)
        trainer.model.config.output_hidden_states = True
        assert isinstance(trainer.predict(Sentences(head)).predictions, tuple if concatenated else list)
        assert trainer.evaluate()[f"eval_{HEADS[head][1]}"] == pytest.approx(expected)


def test_batches_of_different_lengths_are_padded():
    loss = TrainerLoss(sl.MetricLoss("f1", task="multiclass"))
    parts = [(torch.randn(3, tokens, 4).numpy(), torch.randint(4, (3, tokens)).numpy()) for tokens in (5, 7)]
    scores, labels = (list(each) for each in zip(*parts, strict=True))
    found = loss.compute_metrics(transformers.EvalPrediction(scores, labels))["f1"]
    flat = [torch.cat([torch.as_tensor(x).flatten(0, 1) for x in each]) for each in (scores, labels)]
    assert found == pytest.approx(sl.score(*flat, "f1", task="multiclass").item())


def test_outputs_that_are_no_logits_are_refused():
    loss, labels = TrainerLoss(sl.MetricLoss("f1", task="multiclass")), torch.zeros(4, dtype=torch.long)
    loss({"logits": torch.randn(4, 3)}, labels)
    logits, hidden = torch.randn(4, 3).numpy(), torch.randn(4, 16).numpy()
    assert "f1" in loss.compute_metrics(transformers.EvalPrediction((logits, hidden), labels.numpy()))
    for predictions, got in (((hidden, logits), r"shape \(4, 16\)"), (((hidden,), hidden), "a tuple")):
        with pytest.raises(ValueError, match=rf"needs the logits as the first of the model's 2 outputs; got {got}"):
            loss.compute_metrics(transformers.EvalPrediction(predictions, labels.numpy()))


class Returning(torch.nn.Module):
    """A model that is none of transformers': logits, and what they are made of, in a form of its own."""

    def __init__(self, form):
        super().__init__()
        self.words, self.head, self.form = torch.nn.Embedding(WORDS, 5), torch.nn.Linear(5, 3), form

    def forward(self, input_ids, labels=None):
        pooled = self.words(input_ids).mean(1)
        return self.form(self.head(pooled), pooled)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda logits, _: logits, 'must return a dict with "logits"; got a Tensor'),
        (lambda logits, _: {"scores": logits}, 'must return a dict with "logits"; got the keys scores'),
        (lambda logits, _: (logits,), 'the model\'s logits; got nothing. Where .* return a dict with "logits" instead'),
        (lambda *both: both, r"the model's logits; got shape \(32, 5\)\. Where a model returns a tuple, the Trainer"),
    ],
)
def test_a_model_that_does_not_name_its_logits(form, message, tmp_path):
    trainer = make_trainer("multiclass", tmp_path, model=Returning(form))
    with pytest.raises(ValueError, match=message):
        trainer.evaluate()


@pytest.mark.parametrize("scores", [1, 2])
def test_tokens_of_two_classes(scores):
    loss = TrainerLoss(sl.MetricLoss("f1", ignore_index=-100))
    logits, labels = torch.randn(4, 6, scores), torch.randint(2, (4, 6))
    labels[:, 4:] = -100
    flat = (logits[..., 0] if scores == 1 else logits[..., 1] - logits[..., 0])[:, :4].flatten()
    expected = sl.metric_loss(flat, labels[:, :4].flatten(), "f1")
    torch.testing.assert_close(loss({"logits": logits.requires_grad_()}, labels), expected)
    found = loss.compute_metrics(transformers.EvalPrediction(logits.detach().numpy(), labels.numpy()))["f1"]
    assert found == pytest.approx(sl.score(flat.detach(), labels[:, :4].flatten(), "f1").item())


def test_labels_that_make_no_sense_are_seen_in_the_first_batch():
    logits, labels = torch.randn(4, 6, 2), torch.full((4, 6), -100)
    loss = TrainerLoss(sl.MetricLoss("f1"))
    with pytest.raises(ValueError, match=r"hold −100, .* as in MetricLoss\('f1', task='binary', ignore_index=-100\)"):
        loss({"logits": logits}, labels)
    with pytest.raises(ValueError, match=r"hold −100, which is for entries to leave out"):
        loss.compute_metrics(transformers.EvalPrediction(logits.numpy(), labels.numpy()))
    with pytest.raises(ValueError, match=r"targets must be 0 or 1, .*; got 2"):
        loss({"logits": logits}, torch.full((4, 6), 2))
    assert loss({"logits": logits * torch.nan}, torch.ones(4, 6)).isnan(), "which a GradScaler skips"


@pytest.mark.full  # the Trainer knows trials where Ray is installed
def test_every_trial_of_a_search_begins_anew(tmp_path):
    settings = {"subject_to": "precision >= 0.99", "memory": sl.Memory(4)}
    trainer = in_order(make_trainer("two scores", tmp_path, settings))
    trainer.model_init, found = lambda: make_model("two scores"), []
    for trial in ({"trial": 1}, {"trial": 2}):
        trainer.train(trial=trial)
        found.append({name: value.clone() for name, value in trainer.compute_loss_func.loss_fn.state_dict().items()})
    assert found[0]["multipliers"] > 1
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("task", ["multilabel", "multiclass"])
def test_several_labels_a_token_are_refused(task):
    loss = TrainerLoss(sl.MetricLoss("f1", task=task))
    with pytest.raises(ValueError, match=r"one class each, shape \(2, 5\); got \(2, 5, 3\), several labels or prob"):
        loss({"logits": torch.randn(2, 5, 3)}, torch.rand(2, 5, 3).softmax(-1))


def test_label_smoothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0\.1 .* has no effect on this loss\. Leave it at 0"):
        make_trainer("multiclass", tmp_path, label_smoothing_factor=0.1).train()


def test_errors(tmp_path):
    trainer = make_trainer("two scores", tmp_path)
    loss = TrainerLoss(sl.MetricLoss("f1"))
    trainer = transformers.Trainer(
        make_model("two scores"), trainer.args, train_dataset=Sentences("two scores"), compute_loss_func=loss
    )
    with pytest.raises(
        RuntimeError, match=r"pass it as a callback as well: Trainer\(compute_loss_func=loss, callbacks"
    ):
        trainer.train()
    with pytest.raises(ValueError, match='name the column "labels"'):
        loss((torch.zeros(3),), None)
    with pytest.raises(TypeError, match=r"loss_fn must be a stepless\.MetricLoss; got 'f1'"):
        TrainerLoss("f1")


@contextlib.contextmanager
def as_launched(rank, world):
    """What torchrun sets and Accelerate keeps."""
    from accelerate.state import AcceleratorState, PartialState

    try:
        with ranks.as_torchrun(rank, world):
            yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()


def train_rank(rank, world, head, folder, settings):
    with as_launched(rank, world):
        # ranks take batches in turn: with 8 rows each, two of them are one batch of 16
        trainer = in_order(make_trainer(head, folder, per_device_train_batch_size=16 // world, **settings))
        trainer.train()
        assert trainer.args.world_size == world
        return flat(trainer.accelerator.unwrap_model(trainer.model)), logged(trainer), trainer.evaluate()


@pytest.mark.parametrize(
    ("head", "average"),
    [
        ("one score", True),
        ("one score", False),
        ("tokens", True),
        *(pytest.param(*case, marks=pytest.mark.full) for case in (("multiclass", True), ("multilabel", True))),
    ],
)
def test_two_processes_are_one(head, average, tmp_path):
    weights, losses = by_hand(head)
    settings = {"average_tokens_across_devices": average}
    alone = in_order(make_trainer(head, tmp_path))
    alone.train()
    expected = alone.evaluate()[f"eval_{HEADS[head][1]}"]
    for theirs, shown, metrics in ranks.run(train_rank, 2, 2, head, str(tmp_path), settings):
        torch.testing.assert_close(theirs, weights, rtol=1e-4, atol=1e-6)
        assert metrics[f"eval_{HEADS[head][1]}"] == pytest.approx(expected, abs=1e-6)
        if shown:  # the main process logs
            assert shown == pytest.approx(losses, abs=1e-4)


def test_missing():
    code = "import sys; sys.modules['transformers'] = None; import stepless.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'TrainerLoss needs transformers: pip install "stepless[transformers]"' in done.stderr
