from elign.lab.seeds import derive_seed


def test_seeds_repeat_and_differ_between_purposes_and_experiments():
    assert derive_seed(3, "model") == derive_seed(3, "model")
    seeds = {derive_seed(seed, purpose) for seed in range(50) for purpose in ("model", "energy model", "random shift")}
    assert len(seeds) == 150
