import pytest

from elign.lab.data import DATASETS, DataError, DatasetNotFoundError, load_dataset, mnist


def test_the_names():
    assert DATASETS == ("digits", "mnist", "fashion-mnist", "cifar100")
    assert load_dataset("digits").name == "digits"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("minst", "mnist"),
        ("MNIST", "mnist"),
        ("fashion_mnist", "fashion-mnist"),
        ("digit", "digits"),
        ("Fashion", "fash"),
        ("cifar-100", "cifar100"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(wrong, right):
    with pytest.raises(DataError, match=f"Did you mean '{right}"):
        load_dataset(wrong)


@pytest.mark.parametrize("name", ["", "qqqqqqq"])
def test_a_name_like_no_other_lists_them_all(name):
    with pytest.raises(DataError, match="Known are: digits, mnist, fashion-mnist") as caught:
        load_dataset(name)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_data_folder_is_handed_on(tmp_path, name):
    # A file in the way of the folder ends the search before any network is asked.
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset(name, data_dir=tmp_path)
    assert caught.value.dataset == name
    assert caught.value.folder == tmp_path / name
    assert len(caught.value.files) == len(mnist.MNIST.files)


def test_the_data_folder_is_handed_on_to_cifar100(tmp_path):
    (tmp_path / "cifar-100-binary").write_bytes(b"")
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset("cifar100", data_dir=tmp_path)
    assert caught.value.dataset == "cifar100"
    assert caught.value.folder == tmp_path
