"""The bundled configs against what the papers print: values written down by hand from their text, not from the configs.

Where a paper and its code differ, the config has the paper's value and its head names the code's. What a paper reports stands
in its page under docs/papers.
"""

import inspect
import re
from itertools import takewhile
from pathlib import Path

import pytest

from fl_lightning.callbacks import ClientForgetting
from fl_lightning.config_files.bundled import bundled_files, bundled_rows
from fl_lightning.config_files.reading import config_values
from fl_lightning.report.runs import flatten
from fl_lightning.tasks import TaskLearner

PAGES = Path(__file__).parent.parent / "docs" / "papers"
RATE, DECAY = "model.optimizer.lr", "model.optimizer.weight_decay"

# Legate et al. (TCE), Table 1, the highest mean of a column: rate and accuracy.
TCE_TABLE_1 = {
    "cifar10_fedavg": (0.1, ".79 +- .017"),
    "cifar10_tce": (0.03, ".859 +- .004"),
    "cifar10_tce_bn": (0.07, ".859 +- .009"),
    "cifar100_fedavg": (0.07, ".486 +- .036"),  # as high at .03, +- .013; Table 2 names .07
    "cifar100_tce": (0.01, ".524 +- .010"),
    "cifar100_tce_bn": (0.007, ".524 +- .010"),
    "femnist_fedavg": (0.05, ".829"),
    "femnist_tce": (0.007, ".814"),
    "femnist_tce_bn": (0.3, ".850"),  # as high at .1
}
# Legate (WSM), Table 3.1, the highest mean of a column: rate, accuracy, rounds (section 3.2.3), clients of 100 (section 3.2.2).
WSM_TABLE_1 = {
    "cifar10_fedavg_mix": (0.07, ".811", 4000, 10),
    "cifar10_wsm": (0.1, ".846", 4000, 10),
    "cifar100_fedavg_mix": (0.03, ".589", 4000, 2),
    "cifar100_wsm": (0.07, ".596", 4000, 2),
    "femnist_fedavg_mix": (0.01, ".833", 2000, 10),
    "femnist_wsm": (0.03, ".861", 2000, 10),
}
# Legate (WSM), Table 3.2 and section 3.5: rate .1 of FedAvg and .01 of the others, mu 1.1; accuracy on CIFAR-10 and CIFAR-100.
WSM_TABLE_2 = {
    "fedavg": (0.1, ".684", ".519"),
    "wsm": (0.1, ".833", ".603"),
    "scaffold": (0.01, ".816", ".532"),
    "scaffold_wsm": (0.01, ".825", ".598"),
    "fedprox": (0.01, ".752", ".498"),
    "fedprox_wsm": (0.01, ".822", ".554"),
}
# Legate (WSM), Table 3.3: the highest of each column as printed, doubtful ones too.
WSM_TABLE_3 = {
    "fedavg_group_norm": (0.05, ".865"),
    "wsm_group_norm": (0.007, ".853"),
    "fedavg_batch_norm": (0.3, ".828"),
    "wsm_batch_norm": (0.05, ".882"),
}
# Xu et al. (FedReg), section 4.1 and Appendix B: clients, of which in a round, rounds, batch size, local epochs; gamma and
# eta_s of FedReg; rates of FedAvg, SGD, SCAFFOLD and FedReg.
FEDREG = {
    "mnist_two_class": (5000, 10, 500, 10, 40, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1),
    "mnist_one_class": (5000, 10, 500, 10, 20, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1),
    "emnist": (10_000, 20, 500, 24, 20, 0.4, 0.05, 0.2, 0.2, 0.1, 0.2),
    "cifar10_uniform": (10_000, 100, 240, 5, 30, 0.5, 0.1, 0.05, 0.1, 0.01, 0.1),
    "cifar10_one_class": (10_000, 100, 240, 5, 20, 0.5, 0.1, 0.05, 0.1, 0.05, 0.05),
    "cifar100": (50_000, 100, 1200, 1, 10, 0.25, 0.1, 0.05, 0.1, None, 0.1),
    "cifar100_vit": (50_000, 500, 100, 1, 5, 0.02, 0.01, 0.1, 0.1, None, 0.1),
    "ct_densenet": (32, 10, 10, 10, 20, 0.5, 1e-6, 1e-3, 1e-4, 5e-4, 5e-3),
    "ct_cnn10": (32, 10, 10, 10, 20, 0.5, 1e-6, 5e-4, 5e-4, None, 5e-4),
}
# The weight of FedProx' term, printed without a half, so that mu is twice as much, FedCurv's lambda, and the rates of both.
FEDREG_PENALTIES = {
    "mnist_two_class": (0.001, 1e-4, 0.1, 0.1),
    "mnist_one_class": (0.01, 1e-4, 0.1, 0.1),
    "emnist": (0.001, 1e-4, 0.2, 0.2),
    "cifar10_uniform": (0.001, 1e-5, 0.05, 0.05),
    "cifar10_one_class": (0.01, 1e-3, 0.05, 0.05),
    "cifar100": (0.01, 1e-3, 0.05, 0.05),
    "cifar100_vit": (0.001, 1e-5, 0.1, 0.1),
    "ct_densenet": (1.0, 1e-4, 1e-3, 1e-3),
    "ct_cnn10": (0.1, 1e-3, 5e-4, 1e-3),
}
# Appendix B, privacy: sigma of DP-SGD with C 1, and eta_s of FedReg with modified gradients.
FEDREG_PRIVACY = {"emnist": (0.01, 0.03), "cifar10_uniform": (0.05, 0.001), "ct_cnn10": (0.001, 1e-6)}
# The attacks there: 32,000 iterations of Adam at rate 1; distance and weight of the total variation.
FEDREG_ATTACKS = {"emnist": ("l2", 1e-8), "cifar10": ("cosine", 1e-6), "ct": ("l2", 1e-8)}
# Yoon et al. (FedWeIT), Appendix A: clients, the part of them in a round, batch size, rate of Adam. By the beginnings of names,
# the longest that fits. Each client learns 10 tasks (Table B.6: 20) of 20 rounds of one epoch (Figure A.11: as many epochs).
FEDWEIT = {
    "fedweit_noniid50": (5, 1.0, 100, 1e-3 / 3),
    "fedweit_noniid50_resnet18": (5, 1.0, 100, 1e-4),
    "fedweit_overlapped": (5, 1.0, 100, 1e-3 / 3),
    "fedweit_overlapped_20_clients": (20, 0.25, 10, 1e-4),
    "fedweit_overlapped_100_clients": (100, 0.05, 10, 1e-4),
}
# Flashback, Table 1: the accuracy whose parts .75, .9 and 1 are counted, and the clients (FEMNIST: writers, section 5).
# The share of clients, 10 %, is that of FedNTD's setting, which stands for the appendix.
FLASHBACK = {
    "cifar10_beta_0.1": (0.5, 100),
    "cifar10_beta_0.5": (0.59, 100),
    "cinic10_beta_0.1": (0.46, 100),
    "cinic10_beta_0.5": (0.48, 100),
    "femnist_500": (0.72, 500),
    "femnist_3432": (0.73, 3432),
}
# Public samples: printed for CIFAR-10 and CINIC-10. FEMNIST's stand for the appendix: 2.5 % of the training samples, of which
# LEAF gives each of so many writers about 190.
PUBLIC = {"cifar10": 1250, "cinic10": 4500, "femnist_500": 2400, "femnist_3432": 16_000}
# The pages of docs/papers, with the papers' names in the list of configs.
PAPERS = {"tce": "TCE paper", "wsm": "WSM thesis", "fedreg": "FedReg paper", "flashback": "Flashback paper"}
PAPERS |= {"fedweit": "FedWeIT paper", "moon": "MOON paper", "server_optimizers": "Server optimizers", "attacks": "Attack"}
METHODS = ("fedavg", "feddf", "fedntd", "fedprox", "fedreg", "flashback", "moon")


def values(name):
    """The flat values of a config."""
    return dict(flatten(config_values(f"{name}.yaml")))


def printed(name):
    """The cells of a config's line in the page of its paper, after its name, and the head of their table."""
    (page,) = (text for text in map(Path.read_text, PAGES.glob("*.md")) if f"| `{name}.yaml` |" in text)
    before, _, line = page.partition(f"| `{name}.yaml` | ")
    return line.partition(" |\n")[0].split(" | "), before.rpartition("| config | ")[2].partition(" |\n")[0].split(" | ")


def holds(name, expected):
    actual = values(name)
    assert {key: actual.get(key) for key in expected} == expected, name


def drawn(name):
    """The rounds whose heatmaps a run with a config draws."""
    read = values(name)
    given = {key: read.get(f"callbacks.client_forgetting.{key}") for key in ("every", "rounds")}
    callback = ClientForgetting(**{key: value for key, value in given.items() if value is not None})
    return {round for round in range(1, read["trainer.max_steps"] + 1) if callback.due(round)}


@pytest.mark.parametrize("name", TCE_TABLE_1)
def test_tce_table_1(name):
    rate, accuracy = TCE_TABLE_1[name]
    holds(name, {RATE: rate, DECAY: 1e-4, "trainer.max_steps": 4000, "data.num_clients": 100, "data.partition.alpha": 0.1})
    assert printed(name)[0][1] == accuracy
    assert drawn(name) >= {1, 2000, 2800, 4000}  # Figures 1, 5, 6 and 7


@pytest.mark.parametrize("name", WSM_TABLE_1)
def test_wsm_table_1(name):
    rate, accuracy, rounds, cohort = WSM_TABLE_1[name]
    holds(name, {RATE: rate, DECAY: 1e-4, "trainer.max_steps": rounds, "data.batch_size": 64, "model.local_steps": 3})
    holds(name, {"data.num_clients": 100, "data.clients_per_round": cohort, "data.partition.alpha": 0.1})
    assert printed(name)[0][1] == accuracy
    assert drawn(name) >= {1, rounds}  # Figures A.1 and A.2


@pytest.mark.parametrize("method", WSM_TABLE_2)
def test_wsm_table_2(method):
    rate, *accuracies = WSM_TABLE_2[method]
    for data, accuracy in zip(("cifar10", "cifar100"), accuracies, strict=True):
        name = f"{data}_20_clients_{method}"
        holds(name, {RATE: rate, DECAY: 1e-4, "data.num_clients": 20, "data.clients_per_round": 2, "trainer.max_steps": 1500})
        holds(name, {"model.mu": 1.1 if "fedprox" in method else None})
        assert printed(name)[0][1] == accuracy


@pytest.mark.parametrize("name", WSM_TABLE_3)
def test_wsm_table_3(name):
    rate, accuracy = WSM_TABLE_3[name]
    holds(f"cifar10_8000_rounds_{name}", {RATE: rate, DECAY: 1e-4, "trainer.max_steps": 8000})
    assert printed(f"cifar10_8000_rounds_{name}")[0][1] == accuracy
    assert 1 in drawn(f"cifar10_8000_rounds_{name}")


@pytest.mark.parametrize("data", FEDREG)
def test_fedreg(data):
    clients, cohort, rounds, batch, epochs, gamma, pseudo_step, *rates = FEDREG[data]
    for method, rate in zip(("fedavg", "sgd", "scaffold", "fedreg"), rates, strict=True):
        assert (f"fedreg_{data}_{method}.yaml" in bundled_rows()) == (rate is not None)
        if rate is not None:
            name = f"fedreg_{data}_{method}"
            holds(name, {"data.num_clients": clients, "data.clients_per_round": cohort, "trainer.max_steps": rounds})
            holds(name, {RATE: rate, DECAY: None, "model.optimizer.momentum": None})
            work = (None, 1) if method == "sgd" else (batch, epochs)  # SGD: one step on all samples
            holds(name, dict(zip(("data.batch_size", "model.local_epochs"), work, strict=True)))
    holds(f"fedreg_{data}_fedreg", {"model.gamma": gamma, "model.pseudo_step": pseudo_step})


@pytest.mark.parametrize("data", FEDREG_PENALTIES)
def test_fedreg_penalties(data):
    weight, penalty, *rates = FEDREG_PENALTIES[data]
    _, _, rounds, batch, epochs, *_ = FEDREG[data]
    work = {"data.batch_size": batch, "model.local_epochs": epochs, "trainer.max_steps": rounds}
    holds(f"fedreg_{data}_fedprox", {"model.mu": 2 * weight, RATE: rates[0], **work})
    holds(f"fedreg_{data}_fedcurv", {"model.penalty": penalty, RATE: rates[1], **work})


@pytest.mark.parametrize("data", FEDREG_PRIVACY)
def test_fedreg_privacy(data):
    """All else is that of the same method without protection."""
    sigma, pseudo_step = FEDREG_PRIVACY[data]
    protection = {"model.privacy": "fl_lightning.privacy.DPSGD", "model.privacy.clipping_norm": 1.0}
    protection["model.privacy.noise_multiplier"] = sigma
    for method in ("fedavg", "fedprox", "fedcurv", "sgd"):
        assert values(f"fedreg_{data}_{method}_dp_sgd") == {**values(f"fedreg_{data}_{method}"), **protection}
    modified = {"model.pseudo_step": pseudo_step, "model.modified_gradients": True}
    assert values(f"fedreg_{data}_fedreg_mg") == {**values(f"fedreg_{data}_fedreg"), **modified}


@pytest.mark.parametrize("data", FEDREG_ATTACKS)
def test_fedreg_attacks(data):
    distance, variation = FEDREG_ATTACKS[data]
    assert values(f"invert_fedreg_{data}") == {"distance": distance, "tv": variation, "lr": 1.0, "iterations": 32_000}


def test_other_attacks():
    """Geiping et al., the script for one image: signed gradients, rate .1, 24,000 iterations, total variation 1e-4."""
    holds("invert_geiping", {"distance": "cosine", "tv": 1e-4, "lr": 0.1, "iterations": 24_000, "signed": True})
    holds("invert_dlg", {"distance": "l2", "tv": 0.0})


def fedweit_configs():
    rows = (row.name.removesuffix(".yaml") for row in bundled_rows().values() if row.paper.startswith("FedWeIT paper: "))
    return [name for name in rows if name != "fedweit_interference"]  # of which nothing is printed


@pytest.mark.parametrize("name", fedweit_configs())
def test_fedweit(name):
    """Stable-SGD has its authors' rate. Asynchronous clients end tasks by their rate, after no printed number of rounds."""
    clients, part, batch, rate = FEDWEIT[max((start for start in FEDWEIT if name.startswith(start)), key=len)]
    holds(name, {"data.num_clients": clients, "data.clients_per_round": part, "data.batch_size": batch})
    optimizer = ("torch.optim.SGD", 0.1) if "stable_sgd" in name else ("torch.optim.Adam", pytest.approx(rate, rel=1e-4))
    read = values(name)
    assert (read["model.optimizer"], read[RATE]) == optimizer
    tasks, rounds, epochs = read["data.tasks.tasks_per_client"], read["model.tasks.rounds_per_task"], read["model.local_epochs"]
    assert tasks == (20 if "20_tasks" in name else 10)
    assert "asynchronous" in name or rounds * epochs == 20
    assert read["trainer.max_steps"] == tasks * rounds
    if read["model"] == "fl_lightning.tasks.FedWeIT":
        assert read["model.tasks.l2"] == (0.0 if "without_l2" in name else 100.0)
    holds(name, {"model.mu": 0.005 if "fedprox" in name or "sparse_apd" in name else None})
    if name.endswith(("_ewc", "_fedcurv")):
        assert 0.01 <= read["model.tasks.penalty" if name.endswith("_ewc") else "model.penalty"] <= 1


def test_rates_of_fedweit_fall_as_printed():
    """By 3 after 5 epochs without a lower validation loss, and a task is over at 1e-7: the defaults, of an epoch a round."""
    defaults = inspect.signature(TaskLearner.__init__).parameters
    assert [defaults[name].default for name in ("patience", "rate_divisor", "smallest_rate")] == [5, 3.0, 1e-7]


def test_fedreg_figures():
    """C.1: shares drawn evenly, MNIST's among 2,000 clients and EMNIST's among 10,000. C.2: EMNIST and CIFAR-10 (one class)."""
    even = {"data.partition": "fl_lightning.data.IID"}
    holds("fedreg_mnist_iid_fedavg", {"data.num_clients": 2000, "data.source": "MNIST", **even})
    holds("fedreg_emnist_iid_fedavg", {"data.num_clients": 10_000, "data.source": "EMNIST/digits", **even})
    text = (PAGES / "fedreg.md").read_text()
    assert {"emnist", "cifar10_one_class"} == set(re.findall(r"`fedreg_pseudo_step_(\w+)`", text))


@pytest.mark.parametrize("data", FLASHBACK)
@pytest.mark.parametrize("method", METHODS)
def test_flashback_table_1(data, method):
    accuracy, clients = FLASHBACK[data]
    name = f"flashback_{data}_{method}"
    holds(name, {"data.num_clients": clients, "data.clients_per_round": 0.1, "trainer.max_steps": 500})
    assert values(name)["callbacks.summary.targets"] == pytest.approx((0.75 * accuracy, 0.9 * accuracy, accuracy), abs=1e-9)
    assert printed(name)[1][1] == f"paper, .75 of A = {accuracy}"
    public = next(size for start, size in PUBLIC.items() if data.startswith(start))
    holds(name, {"data.public_size": public if method in ("feddf", "flashback") else None})


def test_all_configs_of_these_tables_are_held():
    """A config of one of the tables that no test here reads would be held by nothing."""
    held = {*TCE_TABLE_1, *WSM_TABLE_1, *(f"cifar10_8000_rounds_{name}" for name in WSM_TABLE_3)}
    held |= {f"{data}_20_clients_{method}" for data in ("cifar10", "cifar100") for method in WSM_TABLE_2}
    held |= {f"flashback_{data}_{method}" for data in FLASHBACK for method in METHODS}
    papers = ("TCE paper: ", "WSM thesis: ", "Flashback paper: ")
    assert {row.name.removesuffix(".yaml") for row in bundled_rows().values() if row.paper.startswith(papers)} == held


@pytest.mark.parametrize("page", PAPERS)
def test_the_page_of_a_paper_has_every_row_once(page):
    """Below the heading of its table, under the name that ``fl-lightning configs`` lists."""
    listed = []
    for section in (PAGES / f"{page}.md").read_text().split("\n## ")[1:]:
        table = section.partition("\n")[0]
        listed += [(table, *row) for row in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", section, re.MULTILINE)]
    rows = [row for row in bundled_rows().values() if row.paper.startswith(f"{PAPERS[page]}: ")]
    assert sorted(listed) == sorted((row.table, row.name, row.text) for row in rows)


def numbers(text):
    """All numbers of a text but those of links."""
    return set(re.findall(r"-?\d*\.?\d+", re.sub(r"\[[^]]*\]\([^)]*\)", "", text)))


def head(name):
    """The comment that a config begins with."""
    return " ".join(line.removeprefix("# ") for line in takewhile(lambda line: line[0] == "#", bundled_files()[name].open()))


@pytest.mark.parametrize("page", PAPERS)
def test_heads_of_configs_have_the_numbers_of_the_page(page):
    """What the paper reports and what was run here."""
    for line in re.findall(r"^\| `.*", (PAGES / f"{page}.md").read_text(), re.MULTILINE):
        name, _, *cells = line.strip("| ").split(" | ")
        text = head(name.strip("`"))
        assert numbers(" ".join(cells)) <= numbers(text), name
        assert ("not run" in text) == ("not run" in cells[-1]), name


STUDIED = ("mnist_tasks", "privacy", "digits_classes_")


@pytest.mark.parametrize("name", [name for name in bundled_rows() if name.startswith(STUDIED)])
def test_heads_of_studies_have_the_numbers_of_a_row_of_their_page(name):
    measured, page = re.search(r"Ours.*?: (accuracy .*) \(docs/(.*?)\)", head(name)).groups()
    rows = (PAGES.parent / page).read_text().splitlines()
    assert any(numbers(measured) <= numbers(row) for row in rows if row.startswith("|")), name
