"""What is compared with what: metric, target, baseline, and the refusal of what cannot be compared."""

import numpy as np
import pytest
from scipy import stats

from fl_lightning.report.sections import sections
from fl_lightning.report.study import Spread, holm


def test_final_is_the_mean_over_the_last_hundred_rounds(write_run, study):
    """Evaluated every 50 rounds up to 300: rounds 201 to 300 hold those of 250 and 300, (.5 + .75) / 2."""
    write_run("a", {50: 0.1, 100: 0.1, 150: 0.1, 200: 0.9, 250: 0.5, 300: 0.75})
    one = study()
    assert one.final_of(one.groups[0]).mean == 0.625


def test_final_never_reaches_into_the_first_half(write_run, study):
    """Forty rounds, evaluated every ten: those of 30 and 40, (.75 + .875) / 2, and not the steep beginning."""
    write_run("a", {0: 0.1, 10: 0.1, 20: 0.5, 30: 0.75, 40: 0.875})
    one = study()
    assert one.final_of(one.groups[0]).mean == 0.8125


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 20])
def test_95_percent_intervals_cover_95_percent(seeds):
    """2,000 normal samples of mean 0. A percentile bootstrap covers 75 % with three values, 90 % with ten."""
    samples = np.random.default_rng(0).normal(size=(2000, seeds))
    intervals = [Spread(tuple(sample)).interval for sample in samples.tolist()]
    assert np.mean([low <= 0 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.015)


def test_a_number_that_one_run_lacks_has_no_mean():
    """.5 and .7 of two runs have the mean .6; of three, one of which lacks the number, there is none."""
    assert Spread.of_all([0.5, 0.7], runs=2).mean == pytest.approx(0.6)
    assert np.isnan(Spread.of_all([0.5, 0.7], runs=3).mean)
    assert np.isnan(Spread((0.5,)).interval).all()


def test_holm_corrects_for_the_number_of_tests():
    """By hand: .01 * 4, .02 * 3, max(.06, .03 * 2), max(.06, .04 * 1); what is no test is not counted, and 1 is the most."""
    assert holm([0.03, 0.01, float("nan"), 0.04, 0.02]) == pytest.approx([0.06, 0.04, float("nan"), 0.06, 0.06], nan_ok=True)
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_untrained_model_counts_for_nothing(write_run, study):
    write_run("a", {0: 0.75, 1: 0.25, 2: 0.5})
    one = study()
    (run,) = one.groups[0].runs
    assert one.accuracy(run).rounds.tolist() == [1, 2]
    assert one.final_of(one.groups[0]).mean == 0.5
    assert one.rounds_to(run, 0.5) == 2


def test_on_task_streams_the_last_value_is_final(write_run, study):
    """After all tasks, however short the stream is."""
    write_run("a", {1: 0.75, 2: 0.5, 3: 0.25}, metric="tasks/accuracy")
    one = study()
    assert (one.metric, one.final_of(one.groups[0]).mean) == ("tasks/accuracy", 0.25)


def test_where_classes_arrive_it_is_that_after_all_tasks(write_run, study):
    """Test accuracy is there too, of the classes seen: high with the first task."""
    write_run("a", {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25}, scalars={"tasks/accuracy": {2: 0.75, 4: 0.25}})
    one = study()
    assert (one.metric, one.final_of(one.groups[0]).mean) == ("tasks/accuracy", 0.25)


def test_paired_test_is_students_on_common_seeds(write_run, study):
    """Seeds 0 to 2 and 1 to 3: pairs of seeds 1 and 2; t = mean / (sd / sqrt 2) of the differences, one degree of freedom."""
    ours, theirs = {1: 0.75, 2: 0.8125, 3: 0.5}, {0: 0.5, 1: 0.5, 2: 0.625}
    for seed, value in theirs.items():
        write_run("a", {1: value}, seed=seed)
    for seed, value in ours.items():
        write_run("b", {1: value}, seed=seed, model="FedProx")
    one = study()
    base, other = one.groups
    assert one.baseline is base
    differences, p = one.against_baseline(other, one.finals)
    assert differences.values == (0.25, 0.1875)
    t = np.mean([0.25, 0.1875]) / (np.std([0.25, 0.1875], ddof=1) / np.sqrt(2))
    assert p == pytest.approx(2 * stats.t.sf(t, df=1))


@pytest.mark.parametrize("values", [{0: 0.75}, {0: 0.75, 1: 0.75}])
def test_no_test_with_one_pair_or_without_variation(write_run, study, values):
    for seed, value in values.items():
        write_run("a", {1: 0.5}, seed=seed)
        write_run("b", {1: value}, seed=seed, model="FedProx")
    one = study()
    differences, p = one.against_baseline(one.groups[1], one.finals)
    assert differences.mean == 0.25
    assert np.isnan(p)


def test_no_difference_over_the_runs_that_have_the_number(write_run, study):
    """Of three seeds, one lacks it: what the others say would flatter."""
    for seed in (1, 2, 3):
        write_run("a", {1: 0.5 + seed / 100}, seed=seed)
        write_run("b", {1: 0.25 * seed}, seed=seed, model="FedProx")
    one = study()
    other = one.groups[1]
    assert len(one.against_baseline(other, one.finals)[0].values) == 3
    differences, p = one.against_baseline(other, lambda group: dict([*one.finals(group).items()][: 2 if group is other else 3]))
    assert differences.values == ()
    assert np.isnan(p)


def test_the_baseline_is_that_of_the_same_federation(write_run, study):
    """Two methods under two alphas: each is tested against FedAvg under the same alpha."""
    for alpha in (0.1, 1.0):
        for model in ("FedAvg", "FedProx"):
            write_run(f"{model}_{alpha}", {1: 0.5}, model=model, data__partition__alpha=alpha)
    one = study()
    pairs = {group.label: getattr(one.counterpart(group), "label", None) for group in one.groups}
    assert pairs == {
        "FedAvg, CrossEntropy, alpha 0.1": None,
        "FedProx, CrossEntropy, alpha 0.1": "FedAvg, CrossEntropy, alpha 0.1",
        "FedAvg, CrossEntropy, alpha 1": None,
        "FedProx, CrossEntropy, alpha 1": "FedAvg, CrossEntropy, alpha 1",
    }


def test_the_default_baseline_is_fedavg_with_cross_entropy_at_its_best_rate(write_run, study):
    for rate, value in ((0.1, 0.5), (0.3, 0.75), (1.0, 0.25)):
        write_run(f"a_{rate}", {1: value}, model__optimizer__lr=rate)
        write_run(f"b_{rate}", {1: 1.0}, model__optimizer__lr=rate, model__loss="TruncatedCrossEntropy")
    assert study().baseline.label == "FedAvg, CrossEntropy, lr 0.3"
    assert study("FedAvg, CrossEntropy, lr 1").baseline.label == "FedAvg, CrossEntropy, lr 1"
    with pytest.raises(ValueError, match=r"--baseline is X, must be one of: FedAvg, CrossEntropy, lr 0.1; FedAvg, Cross"):
        study("X")


@pytest.mark.parametrize("all_validated", [True, False])
def test_rates_are_chosen_by_validation_where_all_runs_have_it(write_run, study, all_validated):
    """Rate .1 is best on validation samples, .3 on test samples."""
    for rate, val, test in ((0.1, 0.75, 0.5), (0.3, 0.5, 0.75)):
        validated = {} if rate == 0.3 and not all_validated else {"val/accuracy": {1: val}}
        write_run(f"a_{rate}", {1: test}, model__optimizer__lr=rate, scalars=validated)
    one = study()
    assert one.baseline.label == f"FedAvg, CrossEntropy, lr {0.1 if all_validated else 0.3}"
    assert one.shown() == {"": [one.baseline]}
    by = "validation" if all_validated else "test"
    best = f"each at its best learning rate by {by} accuracy, the ten best of each condition, if all their runs logged it"
    drawn = {drawing.name: drawing for section in sections(one, []) for drawing in section.drawings}
    assert f"The figure has 1 of 2 methods: {best}." in drawn["accuracy"].caption


def test_a_caption_counts_the_methods_that_are_drawn(write_run, study):
    """One of three has no local forgetting."""
    for method in ("FedAvg", "FedProx", "FedNova"):
        local = {} if method == "FedNova" else {"forgetting/local_mean": {1: 0.125, 2: 0.25}}
        write_run(method, {1: 0.5, 2: 0.5}, model=method, scalars=local)
    drawn = {drawing.name: drawing for section in sections(study(), []) for drawing in section.drawings}
    assert "The figure has 2 of 3 methods" in drawn["forgetting_local_mean_over_rounds"].caption
    assert "The figure has" not in drawn["accuracy"].caption


@pytest.mark.parametrize("key", ["tasks", "aggregation", "hostile", "privacy", "server_optimizer"])
def test_the_default_baseline_has_no_additions(write_run, study, key):
    """The best of several additions is what is proposed."""
    plain = {"tasks": "fl_lightning.tasks.ClassLearner", "server_optimizer": "torch.optim.SGD"}.get(key)
    for name, value in (("First", 0.75), ("Second", 1.0), (plain, 0.5)):
        given = name and {"class_path": name}
        write_run(f"a_{value}", {1: value}, **{f"model__{key}": given})
    assert study().final_of(study().baseline).mean == 0.5


def test_the_default_baseline_has_no_server_momentum(write_run, study):
    for momentum, value in ((0.9, 1.0), (0.0, 0.5)):
        server = {"class_path": "torch.optim.SGD", "init_args": {"momentum": momentum}}
        write_run(f"a_{momentum}", {1: value}, model__server_optimizer=server)
    assert study().baseline.label == "FedAvg, CrossEntropy, momentum 0"


def test_targets(write_run, study):
    """That asked for; the configs' largest; 95 % of the best of each condition."""
    write_run("a", {1: 0.5, 2: 0.25}, data__partition__alpha=0.1)
    write_run("b", {1: 0.75, 2: 0.25}, data__partition__alpha=1.0)
    assert study(target=0.9).targets == {"alpha 0.1": 0.9, "alpha 1": 0.9}
    assert study().targets == pytest.approx({"alpha 0.1": 0.475, "alpha 1": 0.7125})
    write_run("c", {2: 0.5}, data__partition__alpha=1.0, model="FedProx", targets=[0.9, 0.95, 0.1])
    assert set(study().targets.values()) == {0.95}


def test_different_data_is_refused(write_run, study):
    write_run("a", {1: 0.5})
    write_run("b", {1: 0.5}, data__source="MNIST")
    with pytest.raises(ValueError, match=r"RUNS mix datasets: data.source is digits in .*/a/.*; data.source is MNIST in .*/b/"):
        study()


def test_different_classes_are_different_data(write_run, study):
    """Two image folders."""
    for name, label in (("a", "cat"), ("b", "rose")):
        write_run(name, {1: 0.5}, data__source="image_folder", scalars={f"class_accuracy/{label}": {1: 0.5}})
    with pytest.raises(ValueError, match=r"the classes differ between those of .*/a/.* and those of .*/b/"):
        study()


def test_a_stream_has_the_classes_that_have_arrived(write_run, study):
    """Runs that came to different tasks, but not those of other classes."""
    for name, labels in (("a", "0"), ("b", "01")):
        scalars = {f"class_accuracy/{label}": {1: 0.5} for label in labels}
        write_run(name, {1: 0.5}, data__tasks="ClassStream", scalars=scalars)
    study()
    write_run("c", {1: 0.5}, data__tasks="ClassStream", scalars={"class_accuracy/2": {1: 0.5}})
    with pytest.raises(ValueError, match="the classes differ"):
        study()


def test_runs_without_a_common_metric_are_refused(write_run, study):
    write_run("a", {1: 0.5})
    write_run("b", {1: 0.5}, metric="tasks/accuracy")
    with pytest.raises(ValueError, match=r"no accuracy in common: test/accuracy in .*/a/.*; tasks/accuracy in .*/b/"):
        study()


def test_the_metric_is_one_that_all_runs_have(write_run, study):
    write_run("a", {1: 0.5}, scalars={"val/accuracy": {1: 0.25}})
    write_run("b", {1: 0.75}, metric="val/accuracy")
    assert study().metric == "val/accuracy"


def test_methods_are_shown_at_their_best_rate(write_run, study):
    for rate, value in ((0.1, 0.5), (0.3, 0.75)):
        write_run(f"a_{rate}", {1: value}, model__optimizer__lr=rate)
        write_run(f"b_{rate}", {1: 1 - value}, model__optimizer__lr=rate, model="FedProx")
    assert [group.label for group in study().shown()[""]] == ["FedAvg, CrossEntropy, lr 0.3", "FedProx, CrossEntropy, lr 0.1"]


def test_the_default_baseline_is_no_class_with_a_longer_name(write_run, study):
    for method, value in (("FedAvg", 0.5), ("FedAvgPlus", 0.75)):
        write_run(method, {1: value}, model=method)
    assert study().baseline.method == "FedAvg, CrossEntropy"


def test_figures_have_the_baseline_under_every_condition(write_run, study):
    """Of twelve methods it is the last under both; its rate differs."""
    for alpha, rate in ((0.1, 0.1), (1.0, 0.3)):
        for number in range(11):
            write_run(f"{number}_{alpha}", {1: 0.5 + number / 100}, model=f"Own{number}", data__partition__alpha=alpha)
        write_run(f"a_{alpha}", {1: 0.25}, data__partition__alpha=alpha, model__optimizer__lr=rate)
    for groups in study().shown().values():
        assert len(groups) == 10
        assert "FedAvg, CrossEntropy" in [group.named for group in groups]


def test_captions_count_runs_of_all_points_and_finished_methods(write_run, study):
    """Two runs of one alpha, one of the other, and a method that has not come to its end."""
    for seed, alpha in ((0, 0.1), (1, 0.1), (0, 1.0)):
        local = {"forgetting/local_mean": {1: 0.125, 2: 0.25}}
        write_run(f"a_{alpha}", {1: 0.5, 2: 0.5}, seed=seed, data__partition__alpha=alpha, scalars=local)
    write_run("b", {1: 0.5}, rounds=2, model="FedProx")
    drawn = {drawing.name: drawing for section in sections(study(), []) for drawing in section.drawings}
    assert "Runs behind each point: 1 to 2." in drawn["ablation_alpha"].caption
    assert "The figure has" not in drawn["forgetting_local_mean_over_rounds"].caption
