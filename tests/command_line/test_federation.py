"""``fl-lightning federation``: the folder of an app, and what it refuses."""

import tomllib

import pytest

from fl_lightning.command_line.commands import federation
from fl_lightning.command_line.trainer_command import parse_trainer_command, trainer_parser


def test_the_app_has_the_config_in_full(tmp_path):
    """The config of the folder is one of ``fit``, with the same values, and the files are those that Flower is told of."""
    federation("init", tmp_path / "app", config="digits_tce.yaml")
    written = tmp_path / "app" / "federated" / "federation.yaml"
    again, first = (parse_trainer_command("fit", ["--config", str(name)]) for name in (written, "digits_tce.yaml"))
    again.config = first.config
    assert trainer_parser("fit").dump(again) == trainer_parser("fit").dump(first)
    flower = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert flower["config"] == {"deadline": 600.0, "resume": False}
    for component in flower["components"].values():
        assert (tmp_path / "app" / f"{component.partition(':')[0].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (("start", "app"), {}, "ACTION is start, must be init or site"),
        (("init", "app"), {}, "--config is missing: federation init needs it"),
        (("site", "app"), {}, "--client is missing: federation site needs it"),
        (("init", "app"), {"config": "digits_tce.yaml", "client": 3}, "--client is 3, which federation init does not take"),
        (
            ("site", "app"),
            {"config": "digits_tce.yaml", "client": 3},
            "--config is digits_tce.yaml, which federation site does",
        ),
        (("init", "full"), {"config": "digits_tce.yaml"}, "FOLDER is .*full, which is not empty: give a new one"),
        (("site", "app"), {"client": 20}, r"--client is 20, must be .* below 20"),
        (("site", "nowhere"), {"client": 1}, "FOLDER is .*/federation.yaml, which does not exist: give"),
        (("site", "app"), {"client": 1, "site": "long" * 30}, "--site is .*, whose path is too long for a socket"),
        (("site", "app"), {"client": 1, "data": "digits_tce.yaml"}, "--data is digits_tce.yaml, which sets model: remove it"),
    ],
)
def test_what_is_refused(arguments, given, words, tmp_path):
    federation("init", tmp_path / "app", config="digits_tce.yaml")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    action, folder = arguments
    if "site" in given:
        given = {**given, "site": tmp_path / given["site"]}
    with pytest.raises((ValueError, OSError), match=words):
        federation(action, tmp_path / folder, **given)
