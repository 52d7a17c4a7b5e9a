"""The callback for Lightning against Lightning itself: its trainer, its modes, its checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import elign


@pytest.fixture
def trainer(lightning, tmp_path):
    """Makes a trainer that is quiet."""

    def make(callback, *others, epochs=4, **options):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        options = {"enable_checkpointing": False, **quiet, **options}
        callbacks = [callback, *others]
        return lightning.Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=tmp_path, **options)

    return make


@pytest.fixture
def callback(lightning):
    from elign.integrations.lightning import RepairCallback

    def make(*args, **options):
        return RepairCallback("classifier", *args, **options)

    return make


@pytest.fixture
def loader(digits):
    def make(classes=range(10), part="train"):
        return DataLoader(TensorDataset(*digits.of(classes, part=part)), batch_size=64)

    return make


def two_tasks(model, callback, trainer, loader, **options):
    """Fits digits 0 to 4, then 5 to 9; the trainer of the second fit."""
    trainer(callback, **options).fit(model, loader(range(5)))
    assert callback.task_repair.fitted is None
    second = trainer(callback, **options)
    second.fit(model, loader(range(5, 10)))
    return second


def predicted(trainer, model, loader):
    return torch.cat(trainer.predict(model, loader(part="test")))


@pytest.mark.parametrize("inference_mode", [True, False])
@pytest.mark.parametrize(
    "what", [elign.Repair(), elign.Gaussian(), elign.EnergyAligner(iterations=50)], ids=lambda what: type(what).__name__
)
def test_predictions_are_repaired_as_by_hand_and_the_base_comes_back(
    module, callback, trainer, loader, digits, what, inference_mode
):
    model, added = module(), callback(what)
    last = two_tasks(model, added, trainer, loader, inference_mode=inference_mode)
    repaired = predicted(last, model, loader)
    x, _ = digits.of(range(10), part="test")
    model.eval()
    gate = elign.ByPrediction(5) if isinstance(what, elign.Aligner) else None
    with torch.no_grad():
        plain = model(x)
        with elign.attach(model, "classifier", added.task_repair.fitted, gate=gate):
            expected = model(x)
    torch.testing.assert_close(repaired, expected)
    added.task_repair.enabled = False
    torch.testing.assert_close(predicted(last, model, loader), plain)
    assert added.task_repair.statistics.classes.tolist() == list(range(10))
    assert elign.detach(model) == 0


def test_old_classes_are_won_back(module, callback, trainer, loader, digits, won_back):
    model, added = module(), callback()
    last = two_tasks(model, added, trainer, loader, epochs=8)
    y = digits.test[1]
    repaired = predicted(last, model, loader)
    added.task_repair.enabled = False
    # Over five seeds: 0.30 to 0.57.
    won_back(repaired, predicted(last, model, loader), y, least=0.28)


def test_two_processes_have_one_repair(lightning, two_ranks, same_state):
    same_state(*two_ranks("lightning"))


def test_validation_within_a_fit_shows_the_model_without_the_repair(module, callback, trainer, loader):
    model, added = module(), callback(elign.Ridge(), old_classes=5)
    last = trainer(added, epochs=2)
    last.fit(model, loader(range(5)), loader(part="test"))
    assert set(model.attached) == {False}
    for evaluate in (last.validate, last.test):
        model.attached.clear()
        evaluate(model, loader(part="test"), verbose=False)
        assert set(model.attached) == {True}
    model.attached.clear()
    trainer(added, epochs=2).fit(model, loader(range(5)), loader(part="test"))
    assert set(model.attached) == {False}


def test_data_of_earlier_tasks_can_be_kept_out(module, callback, trainer, loader, digits):
    model, added = module(), callback(elign.Ridge(), old_classes=5, data=loader(range(5, 10)))
    trainer(added, epochs=1).fit(model, loader(range(10)))
    assert added.task_repair.report.rows == len(digits.of(range(5, 10))[0])


def test_a_fit_that_goes_on_knows_the_model_from_before_it(lightning, module, callback, trainer, loader, tmp_path):
    start = module()
    trainer(callback()).fit(start, loader(range(5)))
    results = []
    for checkpoint in (None, tmp_path / "epoch=1.ckpt"):
        model, added = module(), callback(elign.Ridge(), old_classes=5)
        # A fresh start has the weights of the first task; one that goes on gets its weights from the checkpoint.
        if checkpoint is None:
            model.load_state_dict(start.state_dict())
        keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        last = trainer(added, keep, enable_checkpointing=True)
        last.fit(model, loader(range(5, 10)), ckpt_path=checkpoint, weights_only=True)
        results.append((predicted(last, model, loader), added.task_repair.report.drift_before))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4)
    with torch.no_grad():
        x = next(iter(loader(range(5, 10))))[0]
        assert (start.body(x) - model.body(x)).norm(dim=1).mean() > 0.1


def test_checkpoints_hold_the_repair_of_their_weights(module, callback, trainer, loader, tmp_path):
    model, added = module(), callback()
    last = two_tasks(model, added, trainer, loader)
    expected = predicted(last, model, loader)
    last.save_checkpoint(tmp_path / "after.ckpt")
    other = trainer(callback())
    found = other.predict(module(), loader(part="test"), ckpt_path=tmp_path / "after.ckpt", weights_only=True)
    torch.testing.assert_close(torch.cat(found), expected)


def test_an_error_detaches_the_repair(module, callback, trainer, loader):
    model, added = module(), callback()
    last = two_tasks(model, added, trainer, loader)

    def broken(batch, batch_idx):
        raise KeyError(batch_idx)

    model.test_step = broken
    with pytest.raises(KeyError):
        last.test(model, loader(part="test"), verbose=False)
    assert elign.detach(model) == 0
