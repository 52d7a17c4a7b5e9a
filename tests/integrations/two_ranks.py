"""Learn two tasks with an adapter in two processes (DDP, gloo); each process writes its repair and its outputs.

`python -m torch.distributed.run --standalone --nproc_per_node 2 two_ranks.py FRAMEWORK FOLDER`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

TASKS = (range(5), range(5, 10))


def with_lightning(shared, digits, folder):
    lightning = shared.load_framework("lightning")
    from elign.integrations.lightning import RepairCallback

    model, callback = shared.make_classifier(lightning, shared.Net()), RepairCallback("classifier")
    for classes in TASKS:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            callbacks=[callback],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, DataLoader(TensorDataset(*digits.of(classes)), batch_size=32))
    return callback.task_repair, model, digits.test[0]


def with_transformers(shared, digits, folder):
    transformers = shared.load_framework("transformers")
    from elign.integrations.transformers import RepairCallback

    model, callback = shared.make_vit(transformers), RepairCallback("classifier")
    for classes in TASKS:
        options = {"num_train_epochs": 2, "learning_rate": 3e-3, "save_strategy": "no", "report_to": "none"}
        args = transformers.TrainingArguments(str(folder), use_cpu=True, ddp_backend="gloo", **options)
        data = shared.Images(digits.of(classes))
        transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=[callback]).train()
    return callback.task_repair, model, shared.Images(digits.test).pixels


def main() -> None:
    import conftest  # of this folder; pytest has another one under this name

    framework, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    learn = {"lightning": with_lightning, "transformers": with_transformers}[framework]
    task_repair, model, x = learn(conftest, conftest.Digits(), folder)
    with torch.no_grad(), task_repair.attached(model.eval()):
        outputs = model(x)
    state = {**task_repair.state_dict(), "outputs": getattr(outputs, "logits", outputs)}
    torch.save(state, folder / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
