"""`Repair` on real digits: a small network learns 0-4, then 5-9, and forgets."""

import copy
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import elign
from elign import repair as repair_module
from elign.repair import fit_temperature
from elign.utils.tensors import balanced_accuracy

OLD = 5
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # `pytest.warns` sees them all the same


class World:
    """Two models, data of old and new classes, and held-out images."""

    def __init__(self, hidden=32):
        digits = load_digits()
        x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x, y = x[order], y[order]
        self.test, (x, y) = (x[:600], y[:600]), (x[600:], y[600:])
        self.old, self.new = (x[y < OLD], y[y < OLD]), (x[y >= OLD], y[y >= OLD])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
            train(model, *self.old)
            self.previous = copy.deepcopy(model).eval()
            self.current = train(model, *self.new).eval()
        self.statistics = elign.ClassStatistics.from_data(self.previous, "4", [self.old])

    def exemplars(self, count):
        x, y = self.old
        rows = torch.cat([torch.nonzero(y == label).flatten()[:count] for label in range(OLD)])
        return x[rows], y[rows]

    def accuracy(self, logits, part=None):
        labels = self.test[1]
        rows = torch.ones(len(labels), dtype=torch.bool) if part is None else (labels < OLD) == (part == "old")
        right = logits.argmax(dim=1) == labels
        return balanced_accuracy(right[rows], labels[rows])

    def repaired(self, known="statistics", **options):
        """A repair fitted on statistics, exemplars, both or neither."""
        given = {"statistics": self.statistics} if known in ("statistics", "both") else {}
        if known in ("exemplars", "both"):
            given["exemplars"] = [self.exemplars(20)]
        return elign.Repair("4", **options).fit(self.previous, self.current, [self.new], **given)

    def outputs(self, repair):
        with repair.attach(self.current), torch.no_grad():
            return self.current(self.test[0])


def train(model, x, y, steps=150):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def repair(world):
    return world.repaired()


def latents(world, x):
    return [elign.Latents(model, "4")(x).detach() for model in (world.previous, world.current)]


@pytest.mark.parametrize(("known", "least"), [("statistics", 0.7), ("exemplars", 0.75), ("both", 0.75)])
def test_old_classes_come_back_with_log_probabilities_that_can_be_trusted(world, known, least):
    with torch.no_grad():
        assert world.accuracy(world.previous(world.test[0]), "old") > 0.95
        assert world.accuracy(world.current(world.test[0]), "old") < 0.1
        assert world.accuracy(world.current(world.test[0])) < least - 0.2
    made = world.repaired(known)
    outputs = world.outputs(made)
    assert made.mode == "classifier"
    assert world.accuracy(outputs) > least
    assert world.accuracy(outputs, "old") > 0.6
    assert torch.allclose(outputs.exp().sum(dim=1), torch.ones(len(outputs)), atol=1e-4)
    right = (outputs.argmax(dim=1) == world.test[1]).float().mean()
    assert abs(float(outputs.exp().amax(dim=1).mean() - right)) < 0.05


@pytest.mark.parametrize("known", [1, 2, "statistics"])
def test_without_drift_the_head_stays_unless_forced(world, known):
    if known == "statistics":
        given = {"statistics": elign.ClassStatistics.from_data(world.current, "4", [world.old])}
    else:
        given = {"exemplars": [world.exemplars(known)]}
    with pytest.warns(UserWarning, match="the head stays"):
        made = elign.Repair("4").fit(world.current, world.current, [world.new], **given)
    assert made.mode == "head"
    with torch.no_grad():
        assert torch.equal(world.outputs(made), world.current(world.test[0]))
    forced = elign.Repair("4", force=True).fit(world.current, world.current, [world.new], **given)
    assert forced.mode == "classifier"


def test_with_neither_the_weights_are_aligned_and_a_warning_says_so(world):
    with pytest.warns(UserWarning, match="neither statistics nor exemplars"):
        repair = elign.Repair("4").fit(world.previous, world.current, [world.new])
    assert repair.mode == "weights"
    head, z = world.current[4], latents(world, world.test[0])[1]
    lengths = head.weight.norm(dim=1)
    factor = lengths[:OLD].mean() / lengths[OLD:].mean()
    expected = head(z).detach()
    expected[:, OLD:] = (expected[:, OLD:] - head.bias[OLD:]) * factor + head.bias[OLD:]
    assert torch.allclose(world.outputs(repair), expected, atol=1e-4)
    assert sorted(repair.statistics.classes.tolist()) == [5, 6, 7, 8, 9]


def test_the_same_from_latents(world):
    pairs = elign.Pairs.from_models(world.previous, world.current, "4", [world.new])
    x, labels = world.exemplars(20)
    before, after = latents(world, x)
    made = elign.Repair().fit_latents(
        *pairs, head=world.current[4], statistics=world.statistics, exemplars=(after, labels, before)
    )
    z = latents(world, world.test[0])[1]
    assert torch.equal(made(z, logits=world.current[4](z)), world.outputs(world.repaired("both")))


@pytest.mark.parametrize("known", ["statistics", "exemplars", "neither"])
def test_saved_and_loaded(world, tmp_path, known):
    made = world.repaired(known)
    loaded = elign.Repair.load(made.save(tmp_path / "repair.safetensors"))
    assert loaded.mode == made.mode
    assert torch.equal(world.outputs(loaded), world.outputs(made))
    with pytest.raises(elign.NotFittedError):
        _ = loaded.statistics


@pytest.mark.parametrize(("suffix", "known"), [("onnx", "exemplars"), ("pt2", "statistics")])
def test_exported(world, tmp_path, suffix, known):
    repair = world.repaired(known)
    made = repair.export(world.current, tmp_path / f"model.{suffix}", world.test[0][:32])
    assert made.difference is not None
    assert made.difference < 1e-3
    if suffix == "pt2":
        served = torch.export.load(made.path).module()
        assert torch.allclose(served(world.test[0]), world.outputs(repair), atol=1e-3)
    assert not world.current[4]._forward_hooks


def test_statistics_for_the_next_time_hold_all_classes_in_the_current_space(world, repair):
    assert repair.statistics.classes.tolist() == list(range(10))
    z = latents(world, world.new[0])[1]
    expected = torch.stack([z[world.new[1] == label].mean(dim=0) for label in range(OLD, 10)])
    assert torch.allclose(repair.statistics.means[OLD:], expected, atol=1e-4)


def test_the_inside_can_be_exchanged(world):
    made = world.repaired(aligner=elign.MeanShift(), classifier=elign.NearestMean(normalize=False))
    assert isinstance(made.classifier, elign.NearestMean)
    moved = world.statistics.transport(made.aligner)
    assert torch.allclose(made.classifier.means[:OLD], moved.means, atol=1e-5)


def test_the_report_shows_the_alternatives(repair):
    report = repair.report
    assert set(report.rows) == {"nothing", "bias offset", "retrained head", "repair"}
    assert report.rows["nothing"].old < 0.2 < 0.6 < report.rows["repair"].old
    assert report.rows["repair"].balanced > report.rows["nothing"].balanced
    assert report.drift > 0.1
    assert str(report).startswith(report.verdict)
    assert "<table>" in report._repr_html_()
    assert report.to_dict()["mode"] == "classifier"
    assert "the head never predicts an old class" in report.warnings


def test_each_half_of_the_estimate_is_corrected_by_the_other_half_of_the_plain_logits(world, monkeypatch):
    chosen_on, trials = [], []
    offsets, estimates = repair_module._Given.offsets, elign.Repair._estimates
    monkeypatch.setattr(
        repair_module._Given, "offsets", lambda self, *rows: chosen_on.append(rows[0].clone()) or offsets(self, *rows)
    )
    monkeypatch.setattr(
        elign.Repair,
        "_estimates",
        lambda self, given, trial, out: trials.append(trial) or estimates(self, given, trial, out),
    )
    world.repaired()
    logits = trials[0].logits.double()
    assert torch.equal(chosen_on[-2], logits[1::2])
    assert torch.equal(chosen_on[-1], logits[::2])


def test_several_tasks_have_an_offset_each(world):
    pairs = elign.Pairs.from_models(world.previous, world.current, "4", [world.new])
    x, labels = world.exemplars(20)
    kept = (latents(world, x)[1], labels)
    repair = elign.Repair().fit_latents(*pairs, head=world.current[4], exemplars=kept, task_boundaries=[2, OLD])
    assert len(set(repair.offsets[:2].tolist())) == len(set(repair.offsets[2:OLD].tolist())) == 1
    with pytest.raises(elign.OptionError, match="task_boundaries"):
        elign.Repair().fit_latents(*pairs, head=world.current[4], exemplars=kept, task_boundaries=[2, 7])


def test_labels_need_not_be_contiguous(world, repair):
    places = torch.tensor([3, 7, 11, 19, 20, 2, 9, 30, 31, 39])
    head = nn.Linear(32, 40)
    with torch.no_grad():
        head.weight[places], head.bias[places] = world.current[4].weight, world.current[4].bias
    model = nn.Sequential(*world.current[:4], head).eval()
    old = [(world.old[0], places[world.old[1]])]
    statistics = elign.ClassStatistics.from_data(world.previous, "4", old)
    made = elign.Repair("4").fit(world.previous, model, [(world.new[0], places[world.new[1]])], statistics=statistics)
    with made.attach(model), torch.no_grad():
        outputs = model(world.test[0])
    assert outputs.shape == (600, 40)
    assert (outputs[:, [0, 1, 4]] == -torch.inf).all()
    assert torch.equal(outputs[:, places].argmax(dim=1), world.outputs(repair).argmax(dim=1))


def test_half_precision_and_inference_mode(world, repair):
    model = copy.deepcopy(world.current).bfloat16()
    with repair.attach(model), torch.inference_mode():
        outputs = model(world.test[0].bfloat16())
    assert outputs.dtype == torch.bfloat16
    assert (outputs.argmax(dim=1) == world.outputs(repair).argmax(dim=1)).float().mean() > 0.95


def test_fits_are_repeatable_and_leave_random_numbers_and_models_alone(world, repair, untouched_random_state):
    weights = copy.deepcopy(world.current.state_dict())
    world.current.train()
    again = world.repaired()
    assert world.current.training
    world.current.eval()
    assert torch.equal(world.outputs(again), world.outputs(repair))
    assert all(torch.equal(weights[name], tensor) for name, tensor in world.current.state_dict().items())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"statistics": "no"}, elign.OptionError),
        ({"statistics": elign.ClassStatistics().update(torch.randn(20, 8), torch.arange(20) % 2)}, elign.LatentError),
        ({"exemplars": (torch.randn(4, 32), torch.full((4,), 7))}, elign.LatentError),
        ({"exemplars": torch.randn(4, 32)}, elign.OptionError),
        ({"exemplars": (torch.randn(4, 8), torch.zeros(4, dtype=torch.int64))}, elign.LatentError),
        ({"labels": torch.full((50,), 12)}, elign.LatentError),
        ({"z_prev": torch.randn(50, 31)}, elign.LatentError),
        ({"z_cur": torch.full((50, 32), torch.nan)}, elign.LatentError),
    ],
)
def test_bad_input_gets_a_named_error(change, error):
    z = torch.randn(50, 32)
    given = {"z_prev": z, "z_cur": z + 1, "labels": 5 + torch.arange(50) % 5, "head": nn.Linear(32, 10), **change}
    first = [given.pop(name) for name in ("z_prev", "z_cur", "labels")]
    repair = elign.Repair()
    with pytest.raises(error):
        repair.fit_latents(*first, **given)
    assert not repair.fitted


def test_the_temperature_of_scores_with_a_known_one():
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(20_000, 5, generator=generator)
    labels = torch.multinomial((scores / 3).softmax(dim=1), 1, generator=generator).squeeze(1)
    assert fit_temperature(scores, labels) == pytest.approx(3.0, rel=0.1)


class KeywordHead(nn.Module):
    """A model that hands its latent to the head as a keyword."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(input=self.body(x))


def test_a_keyword_of_the_head_is_remembered_in_the_file(tmp_path):
    torch.manual_seed(0)
    previous, current = KeywordHead().eval(), KeywordHead().eval()
    centers = 6 * torch.randn(4, 8)
    labels = torch.arange(4).repeat(40)
    x = centers[labels] + torch.randn(160, 8)
    old = labels < 2
    statistics = elign.ClassStatistics.from_data(previous, "head", [(x[old], labels[old])], argument="input")
    repair = elign.Repair("head", argument="input", force=True)
    repair.fit(previous, current, [(x[~old], labels[~old])], statistics=statistics)
    repair.save(tmp_path / "repair.safetensors")
    with repair.attach(current):
        expected = current(x)
    with elign.Repair.load(tmp_path / "repair.safetensors").attach(current):
        assert torch.equal(current(x), expected)
    assert (expected.argmax(dim=1) == labels).float().mean() > 0.9


def test_a_map_learned_on_one_class_is_warned_of(world):
    x, y = world.new
    one = [(x[y == OLD], y[y == OLD])]
    repair = elign.Repair("4")
    with pytest.warns(UserWarning, match="one new class alone"):
        repair.fit(world.previous, world.current, one, statistics=world.statistics)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        repair.fit(world.previous, world.current, one, statistics=world.statistics, exemplars=[world.exemplars(5)])
    assert not any("one new class alone" in str(warning.message) for warning in caught)
