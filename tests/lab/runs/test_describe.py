import pytest

from elign.lab.config import compose, describe
from elign.lab.runs.describe import learner_text, memory_text, protocol_text, run_text


def config(*typed):
    return describe(compose(typed))


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("memory=none", "no exemplars"),
        ("memory=budget", "2000 exemplars"),
        ("memory.per_class=7", "7 exemplars per class"),
    ],
)
def test_memory(typed, words):
    assert memory_text(config(typed)) == words


def test_protocol():
    assert protocol_text(config("protocol=b50-5")) == "half-5"
    assert protocol_text(config("protocol.first=4", "protocol.increment=2")) == "4+2"


def test_a_learner_with_other_options_is_told_apart():
    assert learner_text(config("learner=aanet")) == "aanet"
    assert learner_text(config("learner=aanet-implicit")) == "aanet (less_forget=0)"


def test_a_run_and_an_evaluation_of_it():
    metadata = {"config": config("learner=lucir", "data=cifar100")}
    assert run_text(metadata) == "lucir on cifar100, half-5, resnet20, 12/8 epochs, 20 exemplars per class"
    assert run_text({**metadata, "evaluation": ["aligner.steps=3"]}).endswith(", aligner.steps=3")
