"""A run of a few steps, for the commands that need one."""

import pytest

from manyheads.cli import main


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "copy"
    arguments = ["--steps", "2", "--warmup", "1", "--check-every", "2", "--batch-size", "8"]
    arguments += ["--d-model", "16", "--num-heads", "2", "--quiet", "--threads", "1"]
    options = ["max_length=4", "letters=abcdé", "train_size=16", "validation_size=4"]
    for option in options:
        arguments += ["--option", option]
    assert main(["train", "copy", "--out", str(folder), *arguments]) == 0
    return folder
