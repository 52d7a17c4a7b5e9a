"""The callback for transformers against transformers itself: a tiny ViT, its Trainer, its files."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import elign
from elign.lab.cli.main import main


@pytest.fixture
def callback(transformers):
    from elign.integrations.transformers import RepairCallback

    def make(*args, **options):
        return RepairCallback("classifier", *args, **options)

    return make


@pytest.fixture
def trainer(transformers, tmp_path):
    def make(model, callback, data, *, folder="task", epochs=2, evaluate=None, **options):
        settings = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, **options}
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path / folder),
            num_train_epochs=epochs,
            learning_rate=3e-3,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=512,
            **settings,
        )
        return transformers.Trainer(
            model=model, args=args, train_dataset=data, eval_dataset=evaluate, callbacks=[callback]
        )

    return make


@pytest.fixture
def tasks(digits, images):
    return [images(digits.of(classes)) for classes in (range(5), range(5, 10))]


@pytest.fixture
def test_images(digits, images):
    return images(digits.of(range(10), part="test"))


@torch.no_grad()
def logits(model, images):
    return model.eval()(images.pixels).logits


def accuracies(outputs, images):
    """Of old and of new test images."""
    right = (outputs.argmax(dim=1) == images.labels).float()
    return right[images.labels < 5].mean().item(), right[images.labels >= 5].mean().item()


def test_old_classes_are_won_back_and_the_repair_is_found_again(
    transformers, vit, callback, trainer, tasks, test_images, tmp_path
):
    from elign.integrations.transformers import load_repaired

    model, added = vit(), callback()
    for task in tasks:
        last = trainer(model, added, task, epochs=6)
        last.train()
    last.save_model()
    files = {path.name for path in (tmp_path / "task").iterdir()}
    assert {"repair.safetensors", "statistics.safetensors", "model.safetensors"} <= files
    repaired = logits(model, test_images)
    torch.testing.assert_close(torch.tensor(last.predict(test_images).predictions), repaired, rtol=1e-4, atol=1e-4)

    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path / "task")
    plain = accuracies(logits(loaded, test_images), test_images)
    load_repaired(loaded, tmp_path / "task")
    torch.testing.assert_close(logits(loaded, test_images), repaired)
    after = accuracies(repaired, test_images)
    assert after[0] > plain[0] + 0.3
    assert sum(after) > sum(plain) + 0.2
    statistics = elign.ClassStatistics.load(tmp_path / "task" / "statistics.safetensors")
    assert statistics.classes.tolist() == list(range(10))


@pytest.mark.parametrize("what", [elign.Gaussian(), elign.Ridge()], ids=lambda what: type(what).__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_statistics_go_from_one_script_to_the_next(
    transformers, vit, callback, trainer, tasks, test_images, tmp_path, what
):
    from elign.integrations.transformers import load_repaired

    first = trainer(vit(), callback(), tasks[0], folder="first")
    first.train()
    first.save_model()
    assert not (tmp_path / "first" / "repair.safetensors").exists()

    model = transformers.ViTForImageClassification.from_pretrained(tmp_path / "first")
    # Gate ByPrediction would leave every latent of this model unaligned: it predicts new classes only.
    options = {"gate": elign.Always()} if isinstance(what, elign.Aligner) else {}
    added = callback(
        what, **options, statistics=elign.ClassStatistics.load(tmp_path / "first" / "statistics.safetensors")
    )
    trainer(model, added, tasks[1], folder="second").train()
    assert added.task_repair.fitted is not None
    expected = logits(model, test_images)
    elign.detach(model)
    assert not torch.equal(logits(model, test_images), expected)
    load_repaired(model, tmp_path / "second", head="classifier")
    torch.testing.assert_close(logits(model, test_images), expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_checkpoints_of_the_same_weights_hold_the_repair(vit, callback, trainer, tasks, test_images, tmp_path):
    statistics = elign.ClassStatistics.from_data(vit(), "classifier", [tasks[0][range(len(tasks[0]))]])
    model, added = vit(), callback(elign.Repair(force=True), statistics=statistics)
    seen = []
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "evaluate": test_images}
    last = trainer(model, added, tasks[1], **options)
    last.compute_metrics = lambda given: seen.append(elign.detach(model)) or {}
    last.train()
    assert seen == [0, 0], "an evaluation within training was repaired"
    steps = last.state.global_step
    held = sorted(path.parent.name for path in tmp_path.glob("task/*/repair.safetensors"))
    assert held == [f"checkpoint-{steps}"]

    # A run that is resumed knows the model from before the task.
    resumed, again = vit(), callback(elign.Repair(force=True), statistics=statistics)
    trainer(resumed, again, tasks[1], **options).train(
        resume_from_checkpoint=str(tmp_path / f"task/checkpoint-{steps // 2}")
    )
    elign.detach(resumed)
    by_hand = elign.Repair("classifier").fit(vit(), resumed, [tasks[1][range(len(tasks[1]))]], statistics=statistics)
    assert again.task_repair.report.drift == pytest.approx(by_hand.report.drift, rel=1e-3)
    late = callback(statistics=statistics)
    resumed = trainer(vit(), elign_nothing(), tasks[1], **options)
    resumed.add_callback(late)
    with pytest.raises(elign.OptionError, match="give previous"):
        resumed.train(resume_from_checkpoint=str(tmp_path / f"task/checkpoint-{steps // 2}"))


def elign_nothing():
    from transformers import TrainerCallback

    return TrainerCallback()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_previous_model_and_exemplars_can_be_given(vit, callback, trainer, tasks, tmp_path):
    old = tasks[0]
    statistics = elign.ClassStatistics.from_data(vit(), "classifier", [old[range(len(old))]])
    previous = vit()
    with torch.no_grad():
        previous.classifier.bias += 1
    added = callback(statistics=statistics, previous=previous, exemplars=[old[range(0, len(old), 10)]])
    trainer(vit(), added, tasks[1], epochs=1).train()
    assert added.task_repair.fitted is not None
    assert added.previous is None


def test_two_processes_have_one_repair(transformers, two_ranks, same_state):
    same_state(*two_ranks("transformers"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("processed", [True, False])
def test_the_command_repairs_a_transformers_model(transformers, processed, tmp_path, capsys, class_pictures):
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    for file, outputs in (("old", 2), ("new", 4)):
        config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=outputs, **size)
        model = transformers.ViTForImageClassification(config)
        safetensors.torch.save_file(model.state_dict(), tmp_path / f"{file}.safetensors")
    config.save_pretrained(tmp_path / "vit")
    if processed:
        processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
        processor.save_pretrained(tmp_path / "vit")
    old, new = class_pictures(tmp_path)
    command = ["repair", "--model", f"transformers:{tmp_path / 'vit'}", "--new", new, "--exemplars", old, "--json"]
    command += ["--previous", tmp_path / "old.safetensors", "--current", tmp_path / "new.safetensors"]
    capsys.readouterr()
    assert main([*map(str, command), "--out", str(tmp_path / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["model"]["head"], report["model"]["dim"], report["model"]["outputs"]) == ("classifier", 16, 4)
    assert report["model"]["pictures"].startswith("transformers: " if processed else "PlainTransform(size=32")
    assert report["mode"] == "classifier"
    assert "model.onnx" in report["files"]
