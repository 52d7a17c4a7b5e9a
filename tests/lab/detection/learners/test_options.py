import pytest

from elign.lab.detection.learners import LEARNERS, make_detection_learner
from elign.utils.errors import OptionError


def never():
    raise AssertionError("options are checked before a detector is made")


def options_of(name, **options):
    return make_detection_learner(name, never, options).options


def test_published_values_hold_unless_set():
    options = options_of("iod", temperature=3)
    assert (options["temperature"], options["distillation"], options["warp_every"]) == (3, 0.2, 20)
    assert options_of("faster-ilod")["threshold"] == 0.1
    assert (options_of("ilod")["drawn"], options_of("ilod")["pool"]) == (64, 128)
    assert options_of("ore")["unknowns"] == 1
    assert options_of("joint") == options_of("finetune") == {}


@pytest.mark.parametrize("name", LEARNERS)
def test_an_option_that_does_not_exist_is_refused(name):
    with pytest.raises(OptionError, match=f"learner {name} has no option heat"):
        options_of(name, heat=1)


def test_a_misspelt_option_gets_a_hint():
    with pytest.raises(OptionError, match="did you mean temperature"):
        options_of("iod", temperatur=3)


@pytest.mark.parametrize(
    ("name", "option", "value", "wanted"),
    [
        ("ilod", "logits", -1, "at least 0"),
        ("ilod", "logits", "much", "a number"),
        ("ilod", "logits", float("nan"), "a number"),
        ("ilod", "drawn", 0, "at least 1"),
        ("ilod", "drawn", 3.5, "a whole number"),
        ("ilod", "drawn", True, "a whole number"),
        ("iod", "distillation", 1.1, "from 0 to 1"),
        ("iod", "temperature", 0, "from 0.01"),
        ("iod", "warp_first_task", 1, "true or false"),
        ("iod", "teacher_reads", "mine", "one of student, own"),
        ("ore", "fine_tune_share", 1.0, "from 0 to 0.95"),
    ],
)
def test_values_outside_their_range_are_refused(name, option, value, wanted):
    with pytest.raises(OptionError, match=f"option {option} of learner {name} must be .*{wanted}"):
        options_of(name, **{option: value})


def test_a_learner_that_does_not_exist_is_refused_with_a_hint():
    with pytest.raises(OptionError, match="Did you mean 'faster-ilod'"):
        make_detection_learner("fasterilod", never)
