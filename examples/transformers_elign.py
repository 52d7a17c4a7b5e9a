"""Repair with transformers.Trainer: a tiny ViT learns digits 0 to 4, then 5 to 9; accuracies before and after.

Needs transformers, accelerate, scikit-learn and elign. The data are embedded, the weights random; it takes seconds.
"""

from __future__ import annotations

import tempfile
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

import elign.compat  # noqa: F401  (first: what it is for stands in docs/integrations.md)

warnings.filterwarnings("ignore")

from transformers import (  # noqa: E402
    PrinterCallback,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from elign.integrations.transformers import RepairCallback, load_repaired  # noqa: E402


class Images(Dataset):
    """Digits of 16 x 16 pixels, as the dicts that models of transformers are trained on."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.pixels, self.labels = interpolate(pixels, scale_factor=2), torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.pixels[index], "labels": self.labels[index]}


def main() -> None:
    """Train, evaluate, print."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, stratify=y, random_state=0)
    old_train, new_train = (Images(x_train[part], y_train[part]) for part in (y_train < 5, y_train >= 5))
    test = Images(x_test, y_test)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_channels=1, num_labels=10, **size))

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=6,
            learning_rate=2e-3,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=256,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        callback = RepairCallback("classifier")
        for task in (old_train, new_train):
            trainer = Trainer(model=model, args=args, train_dataset=task, callbacks=[callback])
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        trainer.save_model()
        print(callback.task_repair.report)

        repaired = ViTForImageClassification.from_pretrained(folder).eval()
        for name in ("before", "after"):
            if name == "after":
                load_repaired(repaired, folder)
            with torch.no_grad():
                right = (repaired(test.pixels).logits.argmax(dim=1) == test.labels).float()
            old, new = (100 * right[part].mean() for part in (test.labels < 5, test.labels >= 5))
            print(f"{name}: {old:.1f} % of old digits, {new:.1f} % of new ones")


if __name__ == "__main__":
    main()
