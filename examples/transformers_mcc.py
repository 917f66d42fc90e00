"""MCC with the Trainer of Hugging Face Transformers, here for a tiny model that starts from random weights.

One object is the loss, the callback and the metric. It undoes the Trainer's scaling of losses over several processes,
so the gradient is that of the global batch:

    python examples/transformers_mcc.py
    torchrun --nproc-per-node 2 examples/transformers_mcc.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

import stepless as sl
from stepless.integrations.transformers import TrainerLoss

WORDS, TOKENS, CLASSES = 20, 8, 3


class Sentences(Dataset):
    """Sentences of random words, mostly of class 0; two of the words decide which are of classes 1 and 2."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(1, WORDS, (rows, TOKENS), generator=generator)
        self.classes = torch.where((self.words == 3).any(1), 2, torch.where((self.words == 2).sum(1) > 1, 1, 0))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[i], "labels": self.classes[i]}


def main() -> None:
    """Train, and evaluate before and after."""
    torch.set_num_threads(1)
    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=TOKENS, num_labels=CLASSES,
        )
    )  # fmt: skip
    loss = TrainerLoss(
        sl.MetricLoss("mcc", task="multiclass", schedule=sl.Schedule(blend=(1.0, 0.1), until=0.5))
    )  # from cross-entropy, which finds the words, to MCC
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, num_train_epochs=8, per_device_train_batch_size=64, learning_rate=3e-3, use_cpu=True,
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(
            model, args, train_dataset=Sentences(2048, seed=1), eval_dataset=Sentences(1024, seed=2),
            compute_loss_func=loss, compute_metrics=loss.compute_metrics, callbacks=[loss],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        before = trainer.evaluate()["eval_mcc"]
        trainer.train()
        after = trainer.evaluate()["eval_mcc"]
    if trainer.is_world_process_zero():
        print(f"MCC on new sentences {before:.4f} before, {after:.4f} after", flush=True)


if __name__ == "__main__":
    main()
