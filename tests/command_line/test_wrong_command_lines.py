"""Many wrong command lines and configs, made from a table of keys: each is one line that names the key.

Whatever is wrong, the exit code is not 0, standard error has exactly one line ``fl-lightning: error: ...`` with the key as the
user types it, and no file or folder is made.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path

import pytest

FIT = ["fit", "--config", "digits_tce.yaml", "--trainer.max_steps", "1", "--trainer.enable_progress_bar", "false"]

# Options that a key needs, and values of the right type that are out of range. Whole numbers, then numbers.
WHOLE = {
    "seed_everything": ([], ["-1", "4294967296"]),
    "data.num_clients": ([], ["0", "100000000000000000000"]),
    "data.batch_size": ([], ["0"]),
    "data.public_size": ([], ["-1", "1000000"]),
    "data.monitor_test": ([], ["-1"]),
    "data.eval_batch_size": ([], ["0"]),
    "data.num_workers": ([], ["-1"]),
    "data.clients_per_round": ([], ["0", "21"]),
    "data.partition.min_size": (["--data.partition", "DirichletByClass"], ["-1", "1000000"]),
    "data.partition.classes_per_client": (["--data.partition", "Classes"], ["0", "11"]),
    "data.partition.min_samples": (["--data.partition", "Natural"], ["0"]),
    "data.partition.base": (["--data.partition", "PowerLaw"], ["0"]),
    "model.local_steps": ([], ["0", "100000000000000000000"]),
    "model.local_epochs": (["--model.local_steps", "null"], ["0", "100000000000000000000"]),
    "model.net": (["--model.net.hidden", "-1"], ["CNN2"]),
    "model.num_perturbations": (["--model", "FedReg"], ["-1"]),
    "model.distillation_steps": (["--model", "FedDF"], ["0"]),
    "model.distillation_batch_size": (["--model", "FedDF"], ["0"]),
    "model.distillation_patience": (["--model", "FedDF"], ["0"]),
    "model.distillation_epochs": (["--model", "Flashback"], ["0"]),
    "trainer.max_steps": ([], ["0"]),
    "trainer.min_steps": ([], ["2", "-1"]),
    "trainer.val_check_interval": ([], ["0", "0.0", "1.5"]),
    "trainer.log_every_n_steps": ([], ["-1"]),
    "trainer.num_nodes": ([], ["0"]),
    "trainer.accumulate_grad_batches": ([], ["2"]),
    "callbacks.per_class_accuracy.every": ([], ["-1"]),
    "callbacks.per_class_accuracy.clients_every": ([], ["-1"]),
    "callbacks.client_forgetting.every": ([], ["-1"]),
    "callbacks.round_forgetting.every": ([], ["-1"]),
    "callbacks.round_forgetting.clients_every": ([], ["-1"]),
    "callbacks.label_counts.every": ([], ["-1"]),
    "callbacks.communication.every": ([], ["-1"]),
}
REAL = {
    "data.val_fraction": ([], ["1", "-0.1"]),
    "data.clients_per_round": ([], ["0.0", "1.5"]),
    "data.partition.alpha": ([], ["0"]),
    "data.partition.sigma": (["--data.partition", "PowerLaw"], ["-1"]),
    "model.learning_rate_decay": ([], ["0"]),
    "model.clip_local_gradients": ([], ["0"]),
    "model.optimizer.lr": ([], ["-1"]),
    "model.optimizer.momentum": ([], ["-1"]),
    "model.optimizer.weight_decay": ([], ["-1"]),
    "model.server_optimizer.lr": ([], ["-1"]),
    "model.server_optimizer.tau": (["--model.server_optimizer", "FedYogi"], ["0"]),
    "model.mu": (["--model", "FedProx"], ["-1"]),
    "model.temperature": (["--model", "MOON"], ["0"]),
    "model.beta": (["--model", "FedNTD"], ["-1"]),
    "model.alpha": (["--model", "FedDyn"], ["0"]),
    "model.threshold": (["--model", "FedGMA"], ["-0.1", "1.5"]),
    "model.penalty": (["--model", "FedCurv"], ["-1"]),
    "model.gamma": (["--model", "FedReg"], ["-1"]),
    "model.pseudo_step": (["--model", "FedReg"], ["-1"]),
    "model.distillation_rate": (["--model", "FedDF"], ["0"]),
    "model.privacy.noise_multiplier": (["--model.privacy", "DPSGD"], ["-1"]),
    "model.privacy.clipping_norm": (["--model.privacy", "DPSGD", "--model.privacy.noise_multiplier", "1"], ["0"]),
    "model.privacy.delta": (["--model.privacy", "UserLevelDP", "--model.privacy.noise_multiplier", "1"], ["0", "1.5"]),
    "trainer.gradient_clip_val": ([], ["1"]),
    "trainer.limit_val_batches": ([], ["-1", "1.5"]),
    "callbacks.summary.targets": ([], ["[-1]", "[2]"]),
}
CHOICES = [
    "model.engine",
    "model.server_weighting",
    "model.batch_norm_buffers",
    "model.client_state",
    "data.storage",
    "callbacks.summary.table_uses",
    "trainer.precision",
    "trainer.accelerator",
    "trainer.strategy",
]
CLASSES = [
    "model",
    "model.net",
    "model.loss",
    "model.optimizer",
    "model.server_optimizer",
    "model.privacy",
    "data.partition",
    "data.client_sampler",
]
NO_WHOLE_NUMBER = ["abc", "1.5", ".nan", ".inf", "[1, 2]", "{a: 1}", ""]
NO_NUMBER = ["abc", ".nan", ".inf", "-.inf", "nan", "[[1]]", "{a: 1}", ""]
NO_CLASS = ["Nonsense", "nowhere.Nonsense", "3", "[]", "os.path"]
ANY_TEXT = ["model.net"]  # of the keys above, where a number or a text may be a name
MISSPELT = {
    "data.num_client": "data.num_clients",
    "data.partition.alpa": "data.partition.alpha",
    "dta.num_clients": "data.num_clients",
    "model.optimizer.lrr": "model.optimizer.lr",
    "model.optimizer.momentun": "model.optimizer.momentum",
    "model.server_optimizer.weight_deca": "model.server_optimizer.weight_decay",
    "model.net.hiden": "model.net.hidden",
    "model.local_step": "model.local_steps",
    "model.los": "model.loss",
    "modle.local_steps": "model.local_steps",
    "trainer.max_step": "trainer.max_steps",
    "trainr.max_steps": "trainer.max_steps",
    "max_steps": "trainer.max_steps",
    "num_clients": "data.num_clients",
    "trainer.val_check_intervall": "trainer.val_check_interval",
    "callbacks.label_count.every": "callbacks.label_counts.every",
    "callbacks.summary.target": "callbacks.summary.targets",
    "callback.summary.targets": "callbacks.summary.targets",
    "seed_everythin": "seed_everything",
    "ckpt_pat": "ckpt_path",
}
# Other lines: options of fit, the key that is named, and what else is said.
OTHERS = [
    (["--model.mu", "1", "--model", "FedProx"], "model.mu", "give --model first"),
    (["--model.server_optimizer.tau=1", "--model.server_optimizer", "FedYogi"], "model.server_optimizer.tau", "first"),
    (["--model", "FedProx", "--model.muu", "1"], "model.muu", "did you mean model.mu?"),
    (["--data.cohorts", "[0, 1]"], "data.cohorts is [0, 1]", ""),
    (["--callbacks.client_forgetting.rounds", "5"], "callbacks.client_forgetting.rounds is 5", "must be a list: give '[5]'"),
    (
        ["--model.optimizer", "torch.optim.Adam", "--model.optimizer.momentum", "0.9"],
        "model.optimizer.momentum is given, but torch.optim.Adam has no such option",
        "leave it out",
    ),
    (["--model.net", "collections.OrderedDict"], "model.net is collections.OrderedDict", "subclass"),
    (["--model.trained", "[*]"], "model.trained is [*]", """must be a list: give '["*"]'"""),
    (["--model.trained", "[*lora*,fc.*]"], "model.trained is [*lora*,fc.*]", """must be a list: give '["*lora*", "fc.*"]'"""),
    (["--model.trained", "classifier.*"], "model.trained is classifier.*", """must be a list: give '["classifier.*"]'"""),
    (["--model.personal", "fc.*"], "model.personal is fc.*", """must be a list: give '["fc.*"]'"""),
    (["--model.seed", "3"], "model.seed", "seed_everything"),
    (["--model.init_args.seed", "3"], "model.init_args.seed", "seed_everything"),
    (["--data.seed=3"], "data.seed", "seed_everything"),
    (["--data", "null"], "data is null", ""),
    (["--trainer", "3"], "trainer is 3", ""),
    (["--model", "null"], "model", ""),
    (["--model.privacy", "DPSGD"], "model.privacy.noise_multiplier is missing", "give it"),
    (["--model.optimizer.lr"], "model.optimizer.lr", "has no value"),
    (["--model.optimizer.lr", "--model.local_steps", "3"], "model.optimizer.lr", "has no value"),
    (["--model.net={a: 1, a: 2}"], "model.net", "the key a is given twice"),
    (["--model.net={a: &a [*a]}"], "model.net", "part of itself"),
    (["--model.net=" + "[" * 60], "model.net", "deeper than 50 levels"),
    (["--model.loss", "a." * 50_000 + "a"], "model.loss", "is not an import path: it has 50,000 dots"),
    *(([option, "a" * 100_000], option.removeprefix("--"), "aaa...") for option in ("--model.loss", "--model.local_steps")),
    (["--model.loss", "."], "model.loss is .", "there are CalibratedCrossEntropy, CrossEntropy"),
    *(
        (["--model.loss", "torch.nn.CrossEntropyLoss", f"--model.loss.{option}"], f"model.loss.{key}", says)
        for option, key, says in (
            ("weight=[1,2]", "weight is [1,2]", "leave it out, or derive a loss"),
            ("label_smooth=0.1", "label_smooth", "did you mean model.loss.label_smoothing?"),
            ("label_smoothing=x", "label_smoothing is x", "must be a finite number"),
        )
    ),
    *(
        (["--model.loss", f"torch.nn.{name}"], f"model.loss is {name}", "leave it out, or give torch.nn.CrossEntropyLoss or")
        for name in ("MSELoss", "BCEWithLogitsLoss")
    ),
    (["--model", "LGFedAvg", "--model.shared", "[classifier,classifier]"], "model.shared", "give 'classifier.*'"),
    *(
        ([*options, "a" * 300], options[-1].removeprefix("--"), "File name too long")
        for options in (
            ["--trainer.default_root_dir"],
            ["--ckpt_path"],
            ["--config"],
            ["--model.initial_weights"],
            ["--data.source", "MNIST", "--data.root"],
            ["--data.partition", "Fixed", "--data.partition.clients"],
        )
    ),
    (["--model", "FedProx", "--model.mu", "0.1", "--model", "SCAFFOLD"], "model.mu", "SCAFFOLD, given later, has no such"),
    (
        ["--model", "FedProx", "--model.mu", "0.1", "--model", "SCAFFOLD", "--model", "FedProx"],
        "model.mu",
        "model twice after it, which may drop it: give model once",
    ),
    (["stray"], "stray", "--help shows the options"),
    (["model.local_steps", "5"], "model.local_steps 5", "did you mean --model.local_steps?"),
    (["--model.engine", "fast"], "model.engine is fast, must be one of auto, tune, ", "captured or flower"),
    (["--model.local_steps", "1.5"], "model.local_steps is 1.5, must be a whole number or null", ""),
    (["--trainer.deterministic", "x"], "trainer.deterministic is x, must be one of warn, true, false or null", ""),
    (["--model.loss", "WSM"], "model.loss is WSM, which is ReweightedSoftmax here", "give that name"),
    (["--model", "CCVR"], "model is CCVR, which belongs to another option", "give --trainer.callbacks+ CCVR"),
    (["--trainer.callbacks+", "FedAvg"], "trainer.callbacks is FedAvg", "give --model FedAvg"),
    (["--model", "no_file.X"], "model is no_file.X", "there is no no_file.py in the working folder"),
    (["--model.net", "torchvision.nonsense"], "model.net is torchvision.nonsense", "correct the name or its file"),
    (["--model", "fl_lightning.models.MLP"], "model is fl_lightning.models.MLP", "does not derive from FederatedModule"),
    (["--data.num_clients", "100000"], "data.num_clients is 100000", "each needs a training sample"),
    (["--callbacks.client_forgetting.every", "-1"], "callbacks.client_forgetting.every", "at least 0: rounds, 0 is never"),
    (["--trainer.default_root_dir", "a_file"], "trainer.default_root_dir", "cannot be made"),
    (["--trainer.default_root_dir", "a_file/deeper"], "trainer.default_root_dir", "cannot be made"),
    (["--model.optimizer", "Adam", "--model.optimizer.betas", "[0.9]"], "model.optimizer.betas is [0.9]", ""),
    (["--model.optimizer", "Adam", "--model.optimizer.betas", "[2,3]"], "model.optimizer.betas", "has 2.0, must be at least 0"),
    (["--model.optimizer.lr", "-1"], "model.optimizer.lr", "is -1.0, must be at least 0"),
    (["--model.server_optimizer.lr=-inf"], "model.server_optimizer.lr is -inf", ""),
    *(
        (arguments, key, "")
        for key, value in (("model.optimizer.lr", "-inf"), ("data.partition.alpha", "-1e400"))
        for arguments in ([f"--{key}", value], [f"--{key}={value}"])
    ),
    (["--model.local_steps", "9223372036854775808"], "model.local_steps", "and below 9,223,372,036,854,775,808"),
    (["--model.local_steps=-9223372036854775808"], "model.local_steps", "must be above -9,223,372,036,854,775,808 and"),
    (["--data.public_size", "1797"], "data.public_size", "is 1797, must be below 1,437: the clients need samples too"),
    (["--model.optimizer.lr", "-1e-3"], "model.optimizer.lr", "is -0.001, must be at least 0"),
    (["--data.source.path", "x.npz", "--data.source", "Npz"], "data.source.path", "give --data.source first"),
    (["--model.net", "Linear"], "model.net is Linear", "no class has this name: there are CharacterTransformer, CNN10"),
    (["--model.net.hidden", "[8]", "--model.net", "MLP"], "model.net.hidden", "give --model.net first"),
    (["--model.optimizer.learning_rate", "1"], "model.optimizer.learning_rate", "it has model.optimizer.lr"),
    (["--model.frobnicate", "1"], "model.frobnicate", "it has "),
    *(
        ([f"--{key}", "100000000000000000000000"], key, "must be")
        for key in ("trainer.max_steps", "trainer.val_check_interval", "trainer.log_every_n_steps", "data.batch_size")
    ),
    (["--trainer.max_steps", "2147483648"], "trainer.max_steps", "must be at least 1 and below 2,147,483,648"),
    (["--trainer.accelerator", "tpu"], "trainer.accelerator", "is tpu, which Lightning refuses"),
    (["--trainer.accelerator", "cpu", "--trainer.strategy", "fsdp"], "trainer.strategy", "is fsdp, which Lightning refuses"),
    (["--model.optimizer", "LBFGS"], "model.optimizer", "needs a closure"),
    (["--trainer.max_time", "-1"], "trainer.max_time", "is -1, must be days:hours:minutes:seconds"),
    (["--trainer.devices", "0"], "trainer.devices", "is 0, which Lightning refuses"),
    (["--trainer.precision", "64x"], "trainer.precision is 64x", "bf16-true, bf16-mixed"),  # of the second of three types
    (["--data.clients_per_round", "x"], "data.clients_per_round is x", "must be a finite number"),
    *(
        (["--data.source", name, f"--data.source.{option}", "X"], f"data.source is {name}, which takes no data.source.", says)
        for name, option, says in (
            ("image_folder", "size", "or ImageFolder"),
            ("mine.npz", "objective", "--data.source Npz or"),
        )
    ),
    (["--config", "digits_tce.yaml"], "--trainer.max_steps is given before --config digits_tce.yaml", "give it after"),
]
# Configs that build on digits_tce.yaml, or are no config at all.
CONFIGS = [
    (
        "data: {source: {class_path: fl_lightning.data.Joined, init_args: {sources: "
        "{a: {class_path: fl_lightning.data.ImageFolder, init_args: {size: -1}}}}}}",
        "data.source.size is -1",  # our line, among those that jsonargparse gives for the types of a source
        "must be at least 1",
    ),
    ("data: {num_clients: 20}\ndata: {batch_size: 5}", "data", "given twice"),
    ("data: {num_clients: 20, num_clients: 10}", "num_clients", "given twice"),
    ("data: null", "data", "must hold keys"),
    ("data: [1]", "data", "must hold keys"),
    ("trainer: null", "trainer", "must hold keys"),
    ("callbacks: 3", "callbacks", "must hold keys"),
    ("callbacks: {summary: null}", "callbacks.summary", "must hold keys"),
    ("model: {init_args: null}", "model.init_args", "must hold keys"),
    ("model: {init_args: {optimizer: {init_args: [1]}}}", "model.init_args.optimizer.init_args", "must hold keys"),
    ("model: {init_args: {optimizer: 3}}", "model.optimizer is 3", "there are "),
    ("model: 3", "model is 3", "there are "),
    ("model: {init_args: {seed: 3}}", "model.init_args.seed", "seed_everything"),
    ("data: {seed: 3}", "data.seed", "seed_everything"),
    ("seed_everything: null", "seed_everything", ""),
    ("seed_everything: abc", "seed_everything is abc", ""),
    ("trainer: {max_step: 3}", "trainer.max_step", "did you mean trainer.max_steps?"),
    ("data: {net: MLP}", "data.net", "it has data.source"),
    ("data: {num_client: 3}", "data.num_client", "did you mean data.num_clients?"),
    ("model: {init_args: {local_step: 3}}", "model.local_step", "did you mean model.local_steps?"),
    ("trainr: {max_steps: 3}", "trainr.max_steps", "did you mean trainer.max_steps?"),
    ("data: {partition: {alpha: 0.9}}", "data.partition.alpha is 0.9", "not under init_args"),
    ("model: {mu: 0.9}", "model.mu is 0.9", "not under init_args"),
    ("data: {num_clients: 1:30}", "data.num_clients is 1:30", "must be a whole number"),
    ("1: 2", "the key 1", "not a name"),
    ("data: {1: 2}", "data has the key 1", "not a name"),
    ("x: &a {b: *a}", "config is mine.yaml", "part of itself"),
    (
        "a: &a [x]\n" + "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefghijkl")),
        "mine.yaml",
        "values",
    ),
    ("x: " + "[" * 60, "config is mine.yaml", "deeper than 50 levels"),
    ("{x: " * 60, "config is mine.yaml", "deeper than 50 levels"),
    # PyYAML may refuse so many first, in its words.
    ("x: " + "[" * 100_000, "config is mine.yaml", ""),
    ("{x: " * 100_000, "config is mine.yaml", ""),
    ("x: " + "y" * 25_000_000, "config is mine.yaml", "too large"),
    ("x: " + "y" * 5_000_000, "config is mine.yaml", "characters"),
    ("base: mine.yaml", "config is mine.yaml", "based on itself"),
    ("base: 3", "base in mine.yaml", "must be the name"),
    ("data: [", "config is mine.yaml", "not YAML"),
]


def lines() -> Iterator[tuple[list[str], str]]:
    """Options of fit with a wrong value, each with the key that must be named: what is out of range, and a kind in turn."""
    for keys, wrong in ((WHOLE, cycle(NO_WHOLE_NUMBER)), (REAL, cycle(NO_NUMBER))):
        for key, (needs, out_of_range) in keys.items():
            kinds = [] if key in ANY_TEXT else [next(wrong)]
            yield from (([*needs, f"--{key}={value}"], key) for value in [*kinds, *out_of_range])
    yield from (([f"--{key}=nonsense"], key) for key in CHOICES)
    yield from (([f"--{key}={value}"], key) for key, value in zip(CLASSES, cycle(NO_CLASS)))


VALUES = list(lines())
LINES = [
    *(([f"--{key}=1"], key, f"did you mean {right}?") for key, right in MISSPELT.items()),
    *OTHERS,
]


@pytest.mark.parametrize(("options", "key"), VALUES, ids=[" ".join(options) for options, _ in VALUES])
@pytest.mark.one_in(4)
def test_a_wrong_value_is_one_line(main, tmp_path, options, key):
    check(main, tmp_path, [*FIT, *options], key, "")


@pytest.mark.parametrize(("options", "key", "says"), LINES, ids=[" ".join(options)[:80] for options, *_ in LINES])
@pytest.mark.one_in(4)
def test_a_wrong_command_line_is_one_line(main, tmp_path, options, key, says):
    (tmp_path / "a_file").write_text("")
    check(main, tmp_path, [*FIT, *options], key, says)


@pytest.mark.parametrize(("content", "key", "says"), CONFIGS, ids=[content[:40] for content, *_ in CONFIGS])
@pytest.mark.one_in(4)
def test_a_wrong_config_is_one_line(main, tmp_path, content, key, says):
    base = "" if content.startswith(("base", "{", "1")) else "base: digits_tce.yaml\n"
    (tmp_path / "mine.yaml").write_text(base + content + "\n")
    check(main, tmp_path, ["fit", "--config", "mine.yaml", *FIT[3:]], key, says)


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        (["report"], "RUNS", "give folders of runs"),
        (["report", "--outt", "x", "runs"], "outt", "did you mean out?"),
        (["watch"], "FOLDER", "give that of a run"),
        (["watch", "--prt", "1", "runs"], "prt", "did you mean port?"),
        (["attack"], "ckpt_path", "is missing"),
        (["attack", "--iteration", "3"], "iteration", "did you mean iterations?"),
        (["sweep"], "--config", "required"),
        (["sweep", "--config", "digits_tce.yaml", "--sett", "x=1"], "--sett", "did you mean --set?"),
        (["export", "--ckpt_pat", "x"], "ckpt_pat", "did you mean ckpt_path?"),
        (["fit", "--config", "nowhere.yaml"], "config is nowhere.yaml", "bundled"),
        (["fit", "--config"], "config", "has no value"),
        (["test", "--config", "digits_tce.yaml"], "ckpt_path", "untrained"),
        (["partition", "--config", "digits_tce.yaml", "--out", "x.txt"], "out is x.txt", ".json"),
    ],
)
def test_other_subcommands_name_their_keys(main, tmp_path, arguments, key, says):
    check(main, tmp_path, arguments, key, says)


def check(main: Callable, folder: Path, arguments: list[str], key: str, says: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    code, _, error = main(*arguments)
    found = [line for line in error.splitlines() if line.startswith("fl-lightning: error: ")]
    assert code not in (0, None)
    assert len(found) == 1, error
    assert key in found[0]
    assert says in found[0]
    assert "Traceback" not in error
    assert "jsonargparse" not in error
    assert "Parser key" not in error
    assert "import path string" not in error  # jsonargparse's words for the name of a class
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("value", ["a " * 50_000, "'" * 100_000])
def test_a_long_value_makes_no_long_line(main, value):
    """A value with spaces or quotes is cut in the error too."""
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--model.loss", value)
    assert (code, error.count("\n")) == (1, 1)
    assert "model.loss" in error
    assert len(error) < 5_000
