"""The code in the documentation runs and does what the text says."""

import copy
import importlib.util
import itertools
import json
import re
import runpy
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
import yaml
from options import NO_PICTURES

from fl_lightning import FedAvg, FederatedModule, callbacks, losses, methods, models, privacy, robustness, tasks
from fl_lightning.callbacks.probe import Probe
from fl_lightning.data import FederatedDataModule, availability, client_sampler, partitions
from fl_lightning.engines.engine_choice import EngineName
from fl_lightning.protocol import Learner
from fl_lightning.report.runs import read_run

ROOT = Path(__file__).parent.parent


def _arguments(text: str, word: str) -> list[str]:
    """Of the one ``fl-lightning`` command of a page with this word, on one line or more."""
    (command,) = re.findall(rf"^fl-lightning (.*{word}.*)$", text.replace("\\\n", ""), re.MULTILINE)
    return command.split()


@pytest.fixture
def documented(tmp_path):
    """The methods of docs/adding_a_method.md, imported from a file as a user would have them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding_a_method.md").read_text(), re.DOTALL)
    path = tmp_path / "my_method.py"
    path.write_text("\n".join(blocks))
    spec = importlib.util.spec_from_file_location("my_method", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def my_method(documented):
    return documented.MyFedProx


def test_the_documented_method_minimises_its_objective(my_method, fit, toy_data):
    """Two rounds against a plain loop with mu/2 * ||w - w_t||^2 in the loss, to 1e-12 in float64."""
    data, net = toy_data(cohorts=[[0, 2], [1, 2]]), torch.nn.Linear(4, 3, dtype=torch.float64)
    method = my_method(copy.deepcopy(net), mu=0.5, local_steps=3)
    fit(method, data, 2, precision="64-true")
    for cohort in ([0, 2], [1, 2]):
        received, sums, total = copy.deepcopy(net), [0, 0], 0
        for client in cohort:
            indices = data.shards.train_indices(client)
            local = copy.deepcopy(received)
            for _ in range(3):
                loss = F.cross_entropy(local(data.train_set.inputs[indices]), data.train_set.targets[indices])
                for w, w0 in zip(local.parameters(), received.parameters()):
                    loss = loss + 0.25 * ((w - w0.detach()) ** 2).sum()
                for w, g in zip(local.parameters(), torch.autograd.grad(loss, list(local.parameters()))):
                    w.data -= 0.1 * g
            sums = [s + len(indices) * w.data for s, w in zip(sums, local.parameters())]
            total += len(indices)
        for w, s in zip(net.parameters(), sums):
            w.data = s / total
    torch.testing.assert_close(method.net.weight, net.weight, atol=1e-12, rtol=0)


def test_the_documented_method_without_pull_is_fedavg(my_method, fit, toy_data):
    """mu = 0 gives FedAvg bit for bit."""
    net = torch.nn.Linear(4, 3, dtype=torch.float64)
    prox, plain = my_method(copy.deepcopy(net), mu=0.0, local_steps=2), FedAvg(copy.deepcopy(net), local_steps=2)
    fit(prox, toy_data(), 2, precision="64-true")
    fit(plain, toy_data(), 2, precision="64-true")
    assert torch.equal(prox.net.weight, plain.net.weight)


def test_the_documented_scaffold_keeps_its_variates(documented, fit, toy_data):
    """Four rounds of two clients in three against a plain loop of Algorithm 1, option II, to 1e-12 in float64."""
    cohorts, num_steps, rate = [[0, 2], [1, 2], [0, 1], [0, 2]], 3, 0.1
    data, net = toy_data(cohorts=cohorts), torch.nn.Linear(4, 3, dtype=torch.float64)
    method = documented.MySCAFFOLD(copy.deepcopy(net), local_steps=num_steps, server_weighting="uniform")
    fit(method, data, len(cohorts), precision="64-true")
    x = [weight.detach().clone() for weight in net.parameters()]
    c, variates = [torch.zeros_like(w) for w in x], {k: [torch.zeros_like(w) for w in x] for k in range(3)}
    for cohort in cohorts:
        mean_change, mean_variate_change = [torch.zeros_like(w) for w in x], [torch.zeros_like(w) for w in x]
        for client in cohort:
            indices = data.shards.train_indices(client)
            inputs, targets = data.train_set.inputs[indices], data.train_set.targets[indices]
            y = [w.clone().requires_grad_() for w in x]
            for _ in range(num_steps):
                gradients = torch.autograd.grad(F.cross_entropy(inputs @ y[0].T + y[1], targets), y)
                step = [rate * (g - ci + cs) for g, ci, cs in zip(gradients, variates[client], c)]
                y = [(w - s).detach().requires_grad_() for w, s in zip(y, step)]
            new = [ci - cs + (w0 - w.detach()) / (num_steps * rate) for ci, cs, w0, w in zip(variates[client], c, x, y)]
            mean_change = [m + (w.detach() - w0) / len(cohort) for m, w, w0 in zip(mean_change, y, x)]
            mean_variate_change = [m + (n - ci) / 3 for m, n, ci in zip(mean_variate_change, new, variates[client])]
            variates[client] = new
        x = [w + m for w, m in zip(x, mean_change)]
        c = [cs + m for cs, m in zip(c, mean_variate_change)]
    torch.testing.assert_close(method.net.weight.detach(), x[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(method.server_states.tensors("variate")["weight"], c[0], atol=1e-12, rtol=0)
    kept = method.stored.states.read(1).method["variate"]
    torch.testing.assert_close(kept["weight"], variates[1][0], atol=1e-12, rtol=0)


def test_the_documented_command_runs(my_method, command_line):
    """fl-lightning finds my_method.py in the working folder, and its argument is a key of the command line."""
    text = (ROOT / "docs" / "adding_a_method.md").read_text()
    command = _arguments(text, "my_method")
    result = command_line(*command, *NO_PICTURES, "--trainer.max_steps", "2")
    assert result.returncode == 0, result.stderr
    assert "MyFedProx" in result.stdout
    wrong = command_line(*command, "--model.mu", "-1")
    assert wrong.returncode == 1
    assert "model.mu is -1.0, must be at least 0" in wrong.stderr


def test_the_documented_parts_run_together(main, monkeypatch, tmp_path):
    """Callback, loss and partition of docs/extending.md from a file in the working folder."""
    page = (ROOT / "docs" / "extending.md").read_text()
    (tmp_path / "my_parts.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    code, _, error = main(*_arguments(page, "my_parts"), *NO_PICTURES, "--trainer.max_steps", "10")
    assert code == 0, error
    logged = read_run(next(tmp_path.rglob("version_0"))).log.scalars["clients/disagreement"]
    assert logged.rounds.tolist() == [10]
    assert 0 < logged.values[0] < 1
    monkeypatch.syspath_prepend(tmp_path)
    import my_parts

    assert [len(part) for part in my_parts.FewLarge()(torch.zeros(20), 3, seed=0)] == [10, 5, 5]
    logits, counts = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64), torch.tensor([4, 2, 0])
    shares = logits.softmax(dim=1)[0].log()
    expected = -0.8 * shares[1] - 0.2 * (shares[0] + shares[1]) / 2
    assert my_parts.Smoothed(0.2)(logits, torch.tensor([1]), counts).item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.fixture
def partitions_page():
    """The section on partitions of docs/data.md."""
    text = (ROOT / "docs" / "data.md").read_text()
    return text[text.index("## Partitions") :].split("\n## ")[0]


def test_the_documented_partition_runs(partitions_page, main, tmp_path):
    """The class of docs/data.md from a file in the working folder, its argument a key of the command line."""
    (code,) = re.findall(r"```python\n(.*?)```", partitions_page, re.DOTALL)
    (tmp_path / "my_partition.py").write_text(code)
    code, out, error = main(*_arguments(partitions_page, "my_partition"))
    assert code == 0, error
    assert "Sizes(power=0.5), seed 0" in out


def test_documented_partitions_are_keys(partitions_page, main):
    """Every partition of ours has its line, and the line is understood."""
    lines = re.findall(r"^--data.partition .*$", partitions_page, re.MULTILINE)
    assert {line.split()[1] for line in lines} == set(partitions.__all__) - {"Partition"}
    for line in lines:
        code, _, error = main("partition", "--config", "digits_tce.yaml", *line.split(), "--print_config")
        assert code == 0, error


def test_the_documented_sampler_runs(main, tmp_path):
    """The class of docs/data.md from a file in the working folder: on each round a zone of 4, as many as are in it."""
    text = (ROOT / "docs" / "data.md").read_text()
    section = text[text.index("### Your own sampler") :].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_sampler.py").write_text(code)
    code, _, error = main(*_arguments(section, "my_sampler"), "--model.net", "MLP")
    assert code == 0, error
    namespace: dict = {}
    exec((tmp_path / "my_sampler.py").read_text(), namespace)
    data = FederatedDataModule(num_clients=20, clients_per_round=10, client_sampler=namespace["TimeZones"](4))
    assert [data.cohort(round) for round in (1, 4)] == [[1, 5, 9, 13, 17], [0, 4, 8, 12, 16]]


SAMPLERS = {*client_sampler.__all__, *availability.__all__} - {"ClientSampler", "Availability"}
RULES, HOSTILE = (
    {name for name in robustness.__all__ if issubclass(getattr(robustness, name), base)} - {base.__name__}
    for base in (robustness.Aggregation, robustness.Hostile)
)


def test_documented_samplers_are_keys(main, tmp_path):
    """Every sampler of ours has its row in docs/data.md, and its name is understood."""
    text = (ROOT / "docs" / "data.md").read_text()
    section = text[text.index("## Who takes part") :].split("\n### ")[0]
    rows = re.findall(r"^\| (`\w+`.*?) \|", section, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert {*names} == SAMPLERS
    (trace := tmp_path / "trace.csv").write_text("0,1\n")
    needed = {
        "SometimesThere": ["--data.client_sampler.probability", "0.5"],
        "Trace": ["--data.client_sampler.file", str(trace)],
    }
    for name in names:
        sampler = ["--data.client_sampler", name, *needed.get(name, [])]
        code, _, error = main("fit", "--config", "digits_tce.yaml", *sampler, "--print_config")
        assert code == 0, error


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (
            "--model.net",
            {*models.__all__} - {"Adapter", "LoRA", "Network", "TimmModel", "TorchvisionModel", "TransformersModel"},
        ),
        ("--model.adapter", {*models.__all__} & {"LoRA"}),
        ("--model.loss", {*losses.__all__} - {"Loss"}),
        ("--data.partition", {*partitions.__all__} - {"Partition"}),
        ("--data.client_sampler", SAMPLERS),
        ("--model.aggregation", RULES),
        ("--model.hostile", HOSTILE),
        ("--model.engine", {*get_args(EngineName)}),
        ("--model.privacy", {*privacy.__all__} - {"Privacy"}),
    ],
)
def test_the_table_of_keys_names_every_choice(key, names):
    """In the row of its key; what is no class of ours has a dot."""
    row = re.search(rf"^\| `{key}` \| (.*) \|$", (ROOT / "docs" / "keys.md").read_text(), re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", row)) == names


def test_every_method_has_a_row_of_what_has_been_shown(monkeypatch):
    """With a test that there is, and studies that are declared."""
    monkeypatch.syspath_prepend(ROOT)
    from studies.catalogue import STUDIES

    page = (ROOT / "docs" / "verified.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", page, re.MULTILINE))
    learners = {name for name in tasks.__all__ if issubclass(getattr(tasks, name), Learner)}
    assert {*methods.__all__, "FedWeIT"} | learners - {"TaskLearner", "ClassLearner", "WeightedTransfer"} <= rows.keys()
    probes = {
        name for name in callbacks.__all__ if isinstance(kind := getattr(callbacks, name), type) and issubclass(kind, Probe)
    }
    assert probes <= rows.keys() | {"CCVR"}  # whose row says that it is a callback
    rules = {name for name in robustness.__all__ if issubclass(getattr(robustness, name), robustness.Aggregation)}
    assert rules - {"Aggregation"} <= rows.keys()
    for row in rows.values():
        for path in re.findall(r"`(tests/[\w/.]+)`", row):
            assert (ROOT / path).is_file(), path
    assert set(re.findall(r"`([a-z]\w+)`", page)) <= STUDIES.keys()


def test_documented_hooks_exist():
    """Every hook in the table is a method of FederatedModule."""
    text = (ROOT / "docs" / "adding_a_method.md").read_text()
    hooks = re.findall(r"^\| `(\w+)[(`]", text, re.MULTILINE)
    assert len(hooks) == 24
    for hook in hooks:
        assert hook in dir(FederatedModule), hook


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    """The snippet of the README, as a script in an empty folder, ends with what the README shows, to machines' rounding."""
    text = (ROOT / "README.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "snippet.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("snippet.py", run_name="__main__")
    printed = capsys.readouterr().out
    for measure in ("test accuracy", "F_ki"):
        written = re.search(rf"{measure} (\S+\d)[,.]", text.split("The same federation")[1])[1]
        shown = re.search(rf" {measure}\b.* │ +(\S+)", printed)[1]
        assert abs(float(shown) - float(written)) < 0.03


def test_the_readmes_method_is_the_documented_one(documented, fit, toy_data, tmp_path):
    """The shorter class of the README gives the weights of docs/adding_a_method.md, bit for bit."""
    _, code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "short_method.py").write_text(code)
    short = runpy.run_path(str(tmp_path / "short_method.py"))["MyFedProx"]
    net = torch.nn.Linear(4, 3, dtype=torch.float64)
    methods = [method(copy.deepcopy(net), mu=0.5, local_steps=3) for method in (short, documented.MyFedProx)]
    for method in methods:
        fit(method, toy_data(), 2, precision="64-true")
    assert torch.equal(methods[0].net.weight, methods[1].net.weight)


def test_the_readme_is_short_and_begins_with_a_picture():
    """About 500 words without code; the first picture that is no badge stands above the first heading of a section."""
    text = (ROOT / "README.md").read_text()
    assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) <= 540
    pictures = [name for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text[: text.index("## ")]) if "badge" not in name]
    assert pictures


def test_the_documented_data_modules_are_the_same_federation():
    """The lines of docs/data.md on Python: two clients of three samples each, four times."""
    section = (ROOT / "docs" / "data.md").read_text().split("### From Python")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    made: list = []
    exec(re.sub(r"^data = (.*)$", r"made.append(\1)", code, flags=re.M), {"made": made})
    assert len(made) == 4
    for data in made:
        data.setup()
        assert [sorted(data.shards.train_indices(client).tolist()) for client in range(2)] == [[0, 1, 2], [3, 4, 5]]


def test_the_documented_learner_keeps_its_biases(main, tmp_path, monkeypatch):
    """The method of docs/continual.md, from a file of the working folder: what is sent lacks biases and class layer."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "continual.md").read_text(), re.DOTALL)
    (tmp_path / "my_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    learner = ["--model", "FedAvg", "--model.tasks", "my_method.BiasesOfTasks"]
    code, _, error = main("fit", "--config", "digits_fedweit.yaml", *learner, *NO_PICTURES, "--trainer.max_steps", "1")
    assert code == 0, error
    (file,) = Path().glob("runs/digits_fedweit/version_0/checkpoints/last.ckpt")
    weights = {name: w for name, w in torch.load(file)["state_dict"].items() if name.startswith("net.") and w.ndim > 0}
    sent = sum(w.numel() for name, w in weights.items() if not name.startswith("net.classifier") and not name.endswith("bias"))
    results = json.loads((file.parents[1] / "results.json").read_text())
    assert results["bytes_up"] == 5 * 4 * sent  # five clients, float32


def test_links_lead_somewhere():
    """Every relative link and picture in the README and in docs/ is a file."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[pt]*/*.md")):
        targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        assert targets or page.name in ("rules.md", "adding_a_method.md")
        for target in targets:
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"


def test_headings_leave_out_no_level():
    """A section of a section has one more ``#``: the site refuses to be built otherwise, but takes minutes to say so."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
        assert levels, page
        for above, level in itertools.pairwise(levels):
            assert level <= above + 1, f"{page} has a heading of level {level} below one of level {above}"


def test_documented_keys_exist(capsys):
    """Every key in the table of docs/keys.md and every callback it names is one of the command line."""
    from fl_lightning.command_line import cli

    sys.argv[1:] = []
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", "digits_tce.yaml", "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    config["model"] = config["model"]["init_args"]
    text = (ROOT / "docs" / "keys.md").read_text()
    table = text[text.index("| key | what |") : text.index("## Completion")]
    keys = re.findall(r"`--([\w.]+)", table)
    assert len(keys) > 12
    for key in keys:
        value = config
        for part in key.split("."):
            value = value.get("init_args", value) if isinstance(value, dict) and part not in value else value
            assert part in value, key
            value = value[part]
