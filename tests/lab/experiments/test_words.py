import pytest

from elign.lab.experiments.run_config import compose, describe
from elign.lab.experiments.words import learner_words, memory_words, protocol_words, run_words


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
    assert memory_words(config(typed)) == words


def test_protocol():
    assert protocol_words(config("protocol=b50-5")) == "half-5"
    assert protocol_words(config("protocol.first=4", "protocol.increment=2")) == "4+2"


def test_a_learner_with_other_options_is_told_apart():
    assert learner_words(config("learner=aanet")) == "aanet"
    assert learner_words(config("learner=aanet-implicit")) == "aanet (less_forget=0)"


def test_a_run_and_an_evaluation_of_it():
    facts = {"config": config("learner=lucir", "data=cifar100")}
    assert run_words(facts) == "lucir on cifar100, half-5, resnet20, 12/8 epochs, 20 exemplars per class"
    assert run_words({**facts, "evaluation": ["aligner.steps=3"]}).endswith(", aligner.steps=3")
