import subprocess
import sys

import pytest

START = "import sys; {}; from elign.lab.start import main; sys.exit(main())"


@pytest.mark.parametrize("missing", ["rich", "platformdirs"])
def test_without_the_bench_the_command_says_what_to_install(missing):
    code = START.format(f"sys.modules[{missing!r}] = None")
    done = subprocess.run([sys.executable, "-c", code, "toy", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"elign: the command needs the extra 'lab' ({missing} is missing): pip install '.[lab]'"
    ]


def test_with_the_bench_it_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", START.format("pass"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("elign ")
