"""The command line as a whole: help at once, errors in one line, folders that hold something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import elign
from elign.lab.cli import main as command_line
from elign.lab.cli.main import COMMANDS, FolderError, check_folder, main

HEAVY = ("torch", "numpy", "rich", "pydantic", "omegaconf", "yaml", "torchvision", "sklearn")


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def loaded_by(*arguments: str) -> set[str]:
    code = (
        "import sys\nfrom elign.lab.cli.main import main\n"
        "try:\n    code = main()\nexcept SystemExit as stop:\n    code = stop.code\n"
        "print('\\nmodules', *sys.modules)\nsys.exit(code)"
    )
    done = python(code, *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("\nmodules ")[2].split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["detect", "run", "--help"]])
def test_help_imports_no_package(arguments):
    loaded = loaded_by(*arguments)
    assert "elign.lab.cli.main" in loaded
    assert not loaded & {*HEAVY}


def test_list_imports_no_learner_and_no_torchvision():
    loaded = loaded_by("list", str(Path(__file__).parents[3] / "measured"))
    unwanted = ("elign.lab.learners", "elign.lab.detection", "torchvision", "lightning_fabric")
    assert "elign.lab.runs.run_dir" in loaded
    assert not [name for name in loaded if name.startswith(unwanted)]


def test_every_command_has_help_and_examples(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert f"elign {name}" in capsys.readouterr().out.partition("Examples:")[2]
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"elign {elign.__version__}\n"


@pytest.mark.parametrize("missing", ["rich", "platformdirs"])
def test_without_the_bench_the_command_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from elign.lab.cli.main import main; sys.exit(main())"
    done = python(code, "data")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"elign: this command needs the extra 'lab' ({missing} is missing): pip install 'elign[lab]'"
    ]
    assert python(code, "data", "--help").returncode == 0


def test_a_wrong_command_suggests_the_right_one(capsys):
    assert main(["toi"]) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["toy --seeds 0", "toy --latent-dim -3", "sweep --gpus x", "sweep --gpus inf"])
def test_wrong_options_end_with_code_2(option, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(option.split())
    assert option.split()[1] in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "--keys"], ["reproduce", "table1", "--plan"]])
def test_settings_may_stand_after_an_option_but_nothing_else(command, capsys):
    arguments = command_line._parse([*command, "train.epochs=3"])
    assert arguments.overrides[-1] == "train.epochs=3"
    with pytest.raises(SystemExit):
        main([*command, "--nothing=1"])
    assert "--nothing=1" in capsys.readouterr().err


def test_an_interruption_ends_with_code_130(monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elign.lab.cli.list.run", interrupt)
    assert main(["list"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_folder_with_something_else_is_refused(tmp_path):
    check_folder(tmp_path / "new", "run.json")
    check_folder(tmp_path, "run.json")
    (tmp_path / ".lock").touch()
    check_folder(tmp_path, "run.json")
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FolderError, match=r"thesis\.tex"):
        check_folder(tmp_path, "run.json")
    with pytest.raises(FolderError, match="is a file"):
        check_folder(tmp_path / "thesis.tex", "run.json")
    (tmp_path / "run.json").touch()
    check_folder(tmp_path, "run.json")


@pytest.mark.parametrize(
    "command",
    [
        "run out={}",
        "detect run preset=smoke out={}",
        "reproduce langevin preset=smoke out={}",
        "sweep seed=0 out={}",
        "toy --out {}",
        "report --figures {}",
    ],
)
def test_no_command_writes_into_a_folder_with_something_else(tmp_path, capsys, command):
    if command.startswith("sweep"):
        pytest.importorskip("ray")
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(command.format(tmp_path).split()) == 1
    assert "holds something else" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
