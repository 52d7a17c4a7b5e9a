import copy
import math

import pytest
import torch
from torch.nn import functional as F

from elign.lab.learners import LEARNERS, Learner, LearnerOptions, make_learner
from elign.lab.learners.base import distillation
from elign.lab.learners.lucir import margin_ranking
from elign.lab.models import make_backbone
from elign.utils.errors import OptionError


def made(name, tasks=(4, 2), seed=0, **options):
    torch.manual_seed(seed)
    learner = make_learner(name, lambda: make_backbone("conv", image_shape=(1, 8, 8)), **options)
    for size in tasks:
        learner.grow(size)
    return learner


def batch(classes=6, count=12):
    torch.manual_seed(1)
    return torch.randn(count, 1, 8, 8), torch.arange(count) % classes


def steps(learner, count=3):
    images, labels = batch(learner.classes)
    learner.train()
    optimizer = torch.optim.SGD(learner.groups(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(count):
        optimizer.zero_grad()
        sum(learner(images, labels).terms.values()).backward()
        optimizer.step()


@pytest.mark.parametrize("name", LEARNERS)
def test_the_first_task_is_cross_entropy_alone(name):
    learner = made(name, tasks=(6,))
    images, labels = batch()
    terms, logits = learner(images, labels)
    assert list(terms) == ["classification"]
    assert logits.shape == (12, 6)
    assert terms["classification"].item() == pytest.approx(F.cross_entropy(logits, labels).item())


@pytest.mark.parametrize("name", LEARNERS)
def test_the_model_before_is_the_teacher_and_stays_as_it_is(name):
    learner = made(name, tasks=(4,))
    images, _ = batch()
    learner.eval()
    before = learner.model(images)
    learner.grow(2)
    learner.train()
    assert not learner.teacher.training
    steps(learner)
    assert torch.equal(learner.teacher(images), before)
    assert not any(p.requires_grad for p in learner.teacher.parameters())
    assert (learner.old_classes, learner.classes) == (4, 6)
    assert learner.model(images).shape == (12, 6)


@pytest.mark.parametrize(("name", "first"), [("icarl", 0), ("lwf", 4)])
def test_icarl_and_lwf_distil_old_logits_and_new_images_of_lwf_compete_among_new_classes_only(name, first):
    learner = made(name, options={"temperature": 3.0, "distillation": 0.5}).eval()
    images, labels = batch()
    terms, logits = learner(images, labels)
    each = []
    for row, label in zip(logits.detach(), labels.tolist(), strict=True):
        start = 0 if label < 4 else first  # an exemplar of an old class competes among all classes
        each.append(float(row[start:].exp().sum().log() - row[label]))
    assert set(terms) == {"classification", "distillation"}
    assert terms["classification"].item() == pytest.approx(sum(each) / len(each), rel=1e-5)
    kept = distillation(logits[:, :4], learner.teacher(images), temperature=3.0)
    assert terms["distillation"].item() == pytest.approx(0.5 * kept.item(), rel=1e-5)
    sum(learner(images, labels).terms.values()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in learner.groups())


def test_lucir_weighs_less_forget_by_the_root_of_old_over_new():
    learner = made("lucir", tasks=(8, 2)).eval()
    with torch.no_grad():
        learner.model.backbone.layers[0].weight.add_(0.1)
        learner.model.head.sigma.fill_(7.0)
    images, labels = batch(10)
    terms, _ = learner(images, labels)
    z, z_teacher = learner.model.latents(images), learner.teacher.latents(images)
    cosines = (F.normalize(z, dim=1) * F.normalize(z_teacher, dim=1)).sum(dim=1)
    assert terms["less-forget"].item() == pytest.approx(5 * 2 * (1 - cosines).mean().item(), rel=1e-4)
    ranking = margin_ranking(learner.model.head.cosines(z), labels, old=8, margin=0.5, top_k=2)
    assert ranking.item() > 0
    assert terms["ranking"].item() == pytest.approx(ranking.item(), rel=1e-5)
    for name in ("lucir", "aanet"):
        assert set(made(name, options={"less_forget": 0.0})(images, labels % 6).terms) == {"classification", "ranking"}


@pytest.mark.parametrize("name", ["icarl", "lucir", "aanet"])
def test_old_prototypes_are_frozen_and_new_ones_and_sigma_train(name):
    learner = made(name)
    head = copy.deepcopy(learner.model.head)
    steps(learner)
    after = learner.model.head
    assert torch.equal(after.old, head.old)
    assert not torch.equal(after.new, head.new)
    assert not torch.equal(after.sigma, head.sigma)


def test_imprinting_puts_new_prototypes_on_the_mean_direction():
    learner = made("icarl", tasks=(2, 1))
    latents = F.normalize(torch.randn(5, 64), dim=1)
    learner.imprint(latents, torch.full((5,), 2))
    mean = F.normalize(latents.mean(dim=0), dim=0)
    assert torch.allclose(F.normalize(learner.model.head.new[0], dim=0), mean, atol=1e-6)
    other = made("icarl", tasks=(2, 1), imprint_new=False)
    before = other.model.head.new.clone()
    other.imprint(latents, torch.full((5,), 2))
    assert torch.equal(other.model.head.new, before)


def test_a_linear_head_grows_and_keeps_its_old_rows():
    learner = made("icarl", tasks=(4,), head="linear")
    weight = learner.model.head.weight.clone()
    learner.grow(3)
    assert torch.equal(learner.model.head.weight[:4], weight)
    assert not learner.imprints
    images, labels = batch(7)
    assert set(learner(images, labels).terms) == {"classification", "distillation"}


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [("lucir", "linear", "cosine head"), ("icarl", "round", "cosine or linear"), ("icral", None, "icarl")],
)
def test_unknown_names_and_heads_are_refused(name, head, message):
    with pytest.raises(OptionError, match=message):
        made(name, head=head)


class TestAANet:
    def test_a_level_is_the_sum_of_both_branches_by_their_shares(self):
        learner = made("aanet").eval()
        backbone = learner.model.backbone
        steps(learner)
        learner.eval()
        with torch.no_grad():
            backbone.alpha.copy_(torch.tensor([0.1, 0.5, 0.8, 1.0]))
        x = images = batch()[0]
        for number, share in enumerate([0.1, 0.5, 0.8, 1.0]):
            x = share * backbone.one.level(number, x) + (1 - share) * backbone.two.level(number, x)
        assert torch.allclose(backbone(images), x, atol=1e-5)

    def test_frozen_parts_do_not_move_and_a_fixed_branch_moves_only_its_statistics(self):
        learner = made("aanet", options={"branch_one": "free", "branch_two": "scaled"})
        before = copy.deepcopy(learner.model.backbone)
        steps(learner)
        after = learner.model.backbone
        for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
            frozen = name == "alpha" or (name.startswith("two") and "scale" not in name and old.ndim == 4)
            assert torch.equal(old, new) == frozen, name
        learner = made("aanet", options={"branch_two": "fixed"})
        before = copy.deepcopy(learner.model.backbone.two.state_dict())
        steps(learner)
        after = learner.model.backbone.two.state_dict()
        moved = {name.split(".")[-1] for name in before if not torch.equal(before[name], after[name])}
        assert moved == {"running_mean", "running_var", "num_batches_tracked"}

    def test_shares_follow_the_gradient_on_the_balanced_set_alone(self):
        learner = made("aanet", options={"fusion_rate": 0.1, "fusion_batches": 1})
        steps(learner)
        images, labels = batch()
        before = copy.deepcopy(learner)
        learner.end_epoch(lambda: [(images, labels), (images, labels)], rate=0.5)
        before.eval()
        loss = F.cross_entropy(before.model(images), labels)
        (gradient,) = torch.autograd.grad(loss, [before.model.backbone.alpha])
        alpha = before.model.backbone.alpha
        expected = alpha - 0.1 * 0.5 * (gradient + 5e-4 * alpha)
        assert torch.allclose(learner.model.backbone.alpha, expected, atol=1e-7)
        names = [n for n, p in before.model.named_parameters() if not torch.equal(p, learner.model.get_parameter(n))]
        assert names == ["backbone.alpha"]
        assert learner.training

    def test_shares_and_branches_are_carried_to_the_next_task(self):
        learner = made("aanet")
        steps(learner)
        with torch.no_grad():
            learner.model.backbone.alpha.fill_(0.3)
        before = copy.deepcopy(learner.model.backbone.state_dict())
        learner.grow(2)
        after = learner.model.backbone.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_state_brings_everything_back_but_the_teacher(name):
    learner, other = made(name), made(name, seed=5)
    other.teacher = learner.teacher
    steps(learner)
    other.load_state(learner.state())
    learner.eval(), other.eval()
    images, labels = batch()
    one, two = learner(images, labels).terms, other(images, labels).terms
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not any(key.startswith("teacher") for key in learner.state())


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(OptionError, match="does not fit"):
        made("icarl").load_state(made("aanet").state())


def test_options_are_declared_once_with_their_ranges():
    assert LEARNERS["icarl"].settings() == {
        **{"head": "cosine", "freeze_old": True, "imprint": True},
        **{"temperature": 2.0, "distillation": 1.0},
    }
    assert LEARNERS["finetune"].settings() == {"head": "cosine", "freeze_old": False, "imprint": True}
    assert set(LEARNERS["lucir"].settings()) < set(LEARNERS["aanet"].settings())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("icarl", {"temperature": 0}, "learner.temperature must be greater than 0, not 0"),
        ("icarl", {"temperature": "2"}, "learner.temperature must be a valid number"),
        ("icarl", {"distillation": math.nan}, "learner.distillation must be a finite number"),
        ("icarl", {"distillation": True}, "learner.distillation must be a valid number"),
        ("lucir", {"top_k": 1.5}, "learner.top_k must be a valid integer"),
        ("lucir", {"top_k": 0}, "learner.top_k must be greater than 0"),
        ("lucir", {"less_forget": -1.0}, "learner.less_forget must be greater than or equal to 0"),
        ("aanet", {"branch_one": "loose"}, "'free', 'scaled' or 'fixed'"),
        ("finetune", {"temperature": 2.0}, "has no option temperature; it has: none"),
    ],
)
def test_an_option_out_of_its_range_is_named(name, options, message):
    with pytest.raises(OptionError, match=message):
        LEARNERS[name].check_options(options)


def test_options_of_a_learner_are_not_those_of_the_bench():
    with pytest.raises(OptionError, match="'head'"):

        class Own(Learner):
            class Options(LearnerOptions):
                head: int = 1


def test_distillation_divides_by_the_temperature_and_averages_over_the_batch():
    teacher = torch.tensor([[2 * math.log(3.0), 0.0], [0.0, 0.0]])
    student = torch.zeros(2, 2)
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert distillation(student, teacher, temperature=2.0).item() == pytest.approx(expected, rel=1e-6)


def test_distillation_is_zero_for_equal_logits_and_teaches_only_the_student():
    logits = torch.randn(4, 3, requires_grad=True)
    teacher = logits.detach().clone().requires_grad_()
    loss = distillation(logits, teacher + 5, temperature=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert teacher.grad is None


def test_margin_ranking_by_hand():
    # Two old classes, three new; the third sample is of a new class and does not count.
    cosines = torch.tensor(
        [
            [0.9, 0.1, 0.2, 0.6, 0.5],  # own 0.9, top two 0.6 and 0.5: 0.5 - 0.9 + 0.6 = 0.2, 0.1
            [0.0, 0.3, 0.9, -0.5, 0.1],  # own 0.3: 0.5 - 0.3 + 0.9 = 1.1, 0.3
            [0.0, 0.0, 0.9, 0.9, 0.9],
        ]
    )
    labels = torch.tensor([0, 1, 2])
    loss = margin_ranking(cosines, labels, old=2, margin=0.5, top_k=2)
    assert loss.item() == pytest.approx((0.2 + 0.1 + 1.1 + 0.3) / 4)
    # Beyond the margin it is zero; with one new class, that one counts.
    beyond, single = torch.tensor([[0.9, 0.1, 0.3]]), torch.tensor([[0.2, 0.1]])
    assert margin_ranking(beyond, torch.tensor([0]), old=2, margin=0.5, top_k=2).item() == 0
    assert margin_ranking(single, torch.tensor([0]), old=1, margin=0.5, top_k=2).item() == pytest.approx(0.4)


def test_margin_ranking_without_old_samples_is_zero_and_has_a_gradient():
    cosines = torch.randn(3, 4, requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([2, 3, 2]), old=2, margin=0.5, top_k=2)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(cosines.grad, torch.zeros(3, 4))
