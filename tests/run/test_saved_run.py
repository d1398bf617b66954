"""The config of a run that is built again."""

import pytest

from fl_lightning.run.saved_run import run_config


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("model: {}\ndata: {}\nmodel: {net: x}\n", "the key model is given twice, the second time in line 3"),
        ("data: {}\nmodel: &a {b: *a}\n", "the alias *a in line 2 is part of itself"),
        ("model: [\n", "while parsing a flow node"),
        ("model: \xe9".encode("latin-1"), "'utf-8' codec can't decode"),
    ],
)
def test_a_config_that_cannot_be_taken_is_named(tmp_path, content, why):
    """One line with the file, the cause and the cure."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as error:
        run_config(tmp_path / "checkpoints" / "last.ckpt")
    message = str(error.value)
    assert message.startswith(f"{path.resolve()} is not the config of a run ({why}")
    assert message.endswith("): take it from the folder of the run")
    assert "\n" not in message
