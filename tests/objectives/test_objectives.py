"""Scores, losses and units of each objective, against plain Python loops over float64 numbers."""

import math
from collections import defaultdict

import pytest
import torch

from fl_lightning import FedAvg, FederatedDataModule, FedNTD, losses
from fl_lightning.callbacks import ForgettingEvents
from fl_lightning.data import Arrays, Natural, from_arrays
from fl_lightning.objectives import MultiLabel, NextToken, Regression, SingleLabel

GENERATOR = torch.Generator().manual_seed(3)
N, OWNERS = 40, 4
OWNER = torch.arange(N) % (OWNERS - 1)  # the last one has no sample
TOKENS = torch.randint(0, 7, (N, 5), generator=GENERATOR)
TOKENS[::3, 3:] = -100
GROUPED = torch.cat([TOKENS, torch.randint(0, 2, (N, 1), generator=GENERATOR)], dim=1)
TARGETS = {
    SingleLabel(): torch.randint(0, 3, (N,), generator=GENERATOR),
    MultiLabel(): torch.randint(0, 2, (N, 4), generator=GENERATOR),
    Regression(bins=3, tolerance=0.5): torch.randn(N, generator=GENERATOR),
    NextToken(num_tokens=8, buckets=3): TOKENS,
    NextToken(num_tokens=8, groups=["prose", "verse"]): GROUPED,
}
NUM_MODELS = 2


def made(objective):
    """The fitted objective with its targets, outputs of two models and units."""
    targets = objective.stored("targets", TARGETS[objective])
    classes = list("abc") if objective.tells_classes else None
    fitted, units = objective.fitted(targets, targets[:0], classes)
    shape = fitted.output_shape(targets, len(units))
    outputs = torch.randn(NUM_MODELS, *shape, generator=torch.Generator().manual_seed(4))
    return fitted, targets, outputs, units


def cross_entropy(logits, target):
    return math.log(sum(map(math.exp, logits))) - logits[target]


def answers(objective, outputs, targets):
    """(sample, unit, score, weight, loss) of each answer of one model, by the definitions."""
    for i, (row, target) in enumerate(zip(outputs.double().tolist(), targets.tolist())):
        if isinstance(objective, SingleLabel):
            yield i, target, float(row.index(max(row)) == target), 1, cross_entropy(row, target)
        elif isinstance(objective, MultiLabel):
            for label, (logit, there) in enumerate(zip(row, target)):
                p, said = 1 / (1 + math.exp(-logit)), logit > 0
                loss = -math.log(p) if there else -math.log(1 - p)
                yield i, label, 2 * float(said and there), said + there, loss
        elif isinstance(objective, Regression):
            unit = sum(target > edge for edge in objective.edges.tolist())
            yield i, unit, float(abs(row[0] - target) <= 0.5), 1, (row[0] - target) ** 2
        else:
            for logits, token in zip(row, target):
                if token != -100:
                    unit = target[-1] if objective.groups else bucket(token)
                    yield i, unit, float(logits.index(max(logits)) == token), 1, cross_entropy(logits, token)


def bucket(token):
    """Its number among those that are filled, of three, by the share of tokens that are more frequent."""
    flat = [t for t in TOKENS.flatten().tolist() if t != -100]
    order = sorted(range(8), key=lambda t: (-flat.count(t), t))
    cut = {t: min(3 * sum(flat.count(other) for other in order[:rank]) // len(flat), 2) for rank, t in enumerate(order)}
    return sorted(set(cut.values())).index(cut[token])


def means(rows, key, count):
    sums = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    for i, unit, score, weight, loss in rows:
        of = sums[key(i, unit)]
        of[:] = of[0] + score, of[1] + weight, of[2] + loss, of[3] + 1
    nan = float("nan")
    scores = [sums[k][0] / sums[k][1] if sums[k][1] else nan for k in range(count)]
    return scores, [sums[k][2] / sums[k][3] if sums[k][3] else nan for k in range(count)]


@pytest.mark.parametrize("objective", TARGETS, ids=repr)
def test_scores_and_losses_are_those_of_a_plain_loop(objective):
    """By owner, by unit and over all samples."""
    fitted, targets, outputs, units = made(objective)
    for model in range(NUM_MODELS):
        rows = list(answers(fitted, outputs[model], targets))
        of_owners = means(rows, lambda i, unit: int(OWNER[i]), OWNERS)
        actual = fitted.score_by_owner(outputs, targets, OWNER, OWNERS), fitted.loss_by_owner(outputs, targets, OWNER, OWNERS)
        for found, expected in zip(actual, of_owners):
            torch.testing.assert_close(found[model], torch.tensor(expected).double(), equal_nan=True, rtol=1e-6, atol=1e-9)
        by_unit, _ = means(rows, lambda i, unit: unit, len(units))
        found = fitted.score_by_unit(outputs, targets, len(units))[model]
        torch.testing.assert_close(found, torch.tensor(by_unit).double(), equal_nan=True, rtol=1e-6, atol=1e-9)
        (score,), (loss,) = means(rows, lambda i, unit: 0, 1)
        assert fitted.score(outputs, targets)[model].item() == pytest.approx(score, rel=1e-6)
        assert fitted.mean_loss(outputs, targets)[model].item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("objective", TARGETS, ids=repr)
def test_clients_count_their_units(objective):
    """Label counts are those of the answers, of labels those that are there, of grouped texts the texts."""
    fitted, targets, outputs, units = made(objective)
    counts = torch.zeros(2, len(units), dtype=torch.int64)
    for i, unit, _, weight, _ in answers(fitted, torch.full_like(outputs[0], -1.0), targets):  # predicts no label
        counts[i % 2, unit] += int(weight)
    if getattr(fitted, "groups", ()):
        counts = torch.stack([targets[part::2, -1].bincount(minlength=2) for part in (0, 1)])
    clients = [range(0, N, 2), range(1, N, 2)]
    data = from_arrays(torch.zeros(N, 5), TARGETS[objective], clients, objective=objective)
    data.setup()
    torch.testing.assert_close(data.label_counts, counts)
    assert len(data.classes) == len(units)


@pytest.mark.parametrize("objective", TARGETS, ids=repr)
def test_the_default_loss_is_that_of_evaluation(objective):
    """Its mean over samples; of texts, samples with fewer tokens weigh their tokens more."""
    fitted, targets, outputs, units = made(objective)
    actual = fitted.loss_for(losses.CrossEntropy())(outputs[0], targets, torch.ones(len(units)))
    rows = list(answers(fitted, outputs[0], targets))
    _, expected = means(rows, lambda i, unit: i, N)
    torch.testing.assert_close(actual.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)


def test_scalars_beside_the_loss():
    assert NextToken().also(torch.tensor(2.0).double())["perplexity"].item() == pytest.approx(math.exp(2))
    assert Regression().also(torch.tensor(9.0))["rmse"].item() == 3


def test_bins_are_quantiles():
    """Of 0 to 99 in four bins, and equal values fill one."""
    fitted, names = Regression(bins=4).fitted(torch.arange(100.0), torch.empty(0), None)
    assert fitted.edges.tolist() == [24.75, 49.5, 74.25]
    assert names == ("up to 24.75", "24.75 to 49.5", "49.5 to 74.25", "above 74.25")
    assert fitted.tolerance == pytest.approx(math.sqrt((100**2 - 1) / 12) / 2)  # half the deviation of a uniform draw
    alike, names = Regression(bins=4, tolerance=1.0).fitted(torch.ones(5), torch.empty(0), None)
    assert len(alike.edges) == 0
    assert names == ("all values",)
    ratings, names = Regression().fitted(torch.tensor([1.0, 2, 3, 4, 5] * 40), torch.empty(0), None)
    assert ratings.unit_counts(torch.arange(1.0, 6), len(names)).tolist() == [0, 1, 2, 3, 4]
    assert len(names) == 5


@pytest.mark.parametrize(
    ("objective", "targets", "message"),
    [
        (MultiLabel(), torch.zeros(4), r"targets of shape \(4,\), must be \(samples, labels\)"),
        (MultiLabel(), torch.zeros(4, 0), r"targets of shape \(4, 0\), must be \(samples, labels\)"),
        ("Regression", torch.zeros(4), r"objective 'Regression', must be an object of .* Regression\(\)$"),
        (Regression, torch.zeros(4), r"objective <class .*Regression'>, must be an object of"),
        (MultiLabel(), torch.full((4, 2), 2), "targets with 2, must be 0 or 1"),
        (Regression(), torch.zeros(4, 3), r"targets of shape \(4, 3\), must be \(samples,\)"),
        (Regression(), torch.tensor([0.0, 1.0, float("nan"), 2.0]), "nan as training target 2, which is not finite"),
        (Regression(), torch.ones(4), "only training targets of 1, of which Regression gets no tolerance: check"),
        (NextToken(), torch.zeros(4), r"must be whole numbers \(samples, places\)"),
        (NextToken(num_tokens=5), torch.full((4, 2), 5), "target 5, must be a token from 0 to 4, or -100"),
        (NextToken(), torch.tensor([[1, 2], [-100, -100], [1, 1], [1, 1]]), "text without a target that counts"),
        (NextToken(groups=["a"]), torch.tensor([[1, 0], [1, 0], [1, 0], [1, 1]]), "group 1, must be from 0 to 0"),
    ],
)
def test_other_targets_are_refused(objective, targets, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Arrays(torch.zeros(4, 2), targets, objective=objective)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            NextToken(),
            "names 2 classes, but the units of NextToken are buckets of tokens: leave the names out, or give groups$",
        ),
        (NextToken(groups=["a"]), "names 2 classes, but the units of NextToken are groups: leave the names out$"),
    ],
)
def test_texts_take_no_names_of_classes(objective, message):
    with pytest.raises(ValueError, match=message):
        Arrays(torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.int64), classes=["a", "b"], objective=objective)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regression(bins=0), "Regression.bins is 0"),
        (lambda: Regression(bins=2.5), "Regression.bins is 2.5, must be a whole number"),
        (lambda: NextToken(buckets=2.5), "NextToken.buckets is 2.5, must be a whole number"),
        (lambda: Regression(tolerance=0), "Regression.tolerance is 0"),
        (lambda: NextToken(buckets=0), "NextToken.buckets is 0"),
        (lambda: NextToken(num_tokens=1), "NextToken.num_tokens is 1"),
    ],
)
def test_values_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("objective", [one for one in TARGETS if not one.tells_classes], ids=repr)
def test_losses_of_classes_are_refused(objective):
    """By name; and those of torch for other targets. One of the user's own is taken."""

    class Mine(losses.Loss):
        def __call__(self, logits, target, label_counts):
            return logits.flatten(1).sum(dim=1)

    for loss in (losses.TruncatedCrossEntropy(), losses.WeightedCrossEntropy(), losses.as_loss(torch.nn.NLLLoss())):
        with pytest.raises(ValueError, match=f"model.loss is {type(getattr(loss, 'loss', loss)).__name__}.*leave it out"):
            objective.loss_for(loss)
    mine = Mine()
    assert objective.loss_for(mine) is mine
    with pytest.raises(ValueError, match="model.loss is MSELoss, which does not fit"):
        SingleLabel().loss_for(losses.as_loss(torch.nn.MSELoss()))


def test_texts_as_targets_of_themselves_are_refused(fit):
    """As Hugging Face's collator gives them, for nets that shift them; shifted ones, and texts of one token, are taken."""
    net, clients, objective = torch.nn.Embedding(7, 7), [range(20), range(20, 40)], NextToken(7)
    whole = TOKENS.clamp_min(0)
    cases = {"refused": (whole, TOKENS), "shifted": (whole[:, :-1], TOKENS[:, 1:]), "one": (whole[:, :1].expand(-1, 5),) * 2}
    for name, (inputs, targets) in cases.items():
        data = from_arrays(inputs, targets, clients, objective=objective)
        if name == "refused":
            with pytest.raises(ValueError, match=r"gives the inputs as targets, as .*: give labels\[:, 1:\], and the inputs"):
                fit(FedAvg(net), data, 1)
        else:
            fit(FedAvg(net), data, 1)


def test_losses_of_texts_are_taken_in_parts(monkeypatch):
    """A float64 copy of all logits would be larger than they are; the bits are the same."""
    objective, targets, outputs, _ = made(next(one for one in TARGETS if isinstance(one, NextToken)))
    whole = objective.losses(outputs[0], targets)
    monkeypatch.setattr("fl_lightning.objectives.next_token._AT_ONCE", 24)
    assert torch.equal(objective.losses(outputs[0], targets), whole)


def test_what_needs_classes_is_refused_before_training(fit):
    """Methods, callbacks, streams of tasks, and partitions where nothing tells texts apart."""
    inputs, targets = torch.randn(20, 3), torch.randn(20)
    clients = [range(10), range(10, 20)]

    def data(**settings):
        return from_arrays(inputs, targets, clients, objective=Regression(), **settings)

    with pytest.raises(ValueError, match="model is FedNTD, which needs one class for each sample, but data.source has Regr"):
        fit(FedNTD(torch.nn.Linear(3, 1)), data(), 1)
    with pytest.raises(ValueError, match="callback ForgettingEvents, which needs one class"):
        fit(FedAvg(torch.nn.Linear(3, 1)), data(test_inputs=inputs, test_targets=targets), 1, callbacks=[ForgettingEvents()])
    with pytest.raises(ValueError, match=r"model.net gives outputs of shape \(2,\), must be \(1,\) for Regression"):
        fit(FedAvg(torch.nn.Linear(3, 2)), data(), 1)
    with pytest.raises(ValueError, match="data.partition is Dirichlet.*use IID or Natural, or give it groups"):
        FederatedDataModule(Arrays(TOKENS, TOKENS, objective=NextToken()), num_clients=2, clients_per_round=2).setup()
    with pytest.raises(ValueError, match="must be whole numbers from 0: number the classes 0 to C - 1, or give .*Regression"):
        Arrays(inputs, targets)
    with pytest.raises(ValueError, match=r"no test samples: set data.test_fraction, as test samples are dealt .* only where"):
        texts = from_arrays(
            TOKENS, TOKENS, [range(18), range(18, 36)], objective=NextToken(), test_inputs=TOKENS, test_targets=TOKENS
        )
        texts.setup()
        texts.evaluation.client_samples("test", [0])
    owned = Arrays(TOKENS, TOKENS, objective=NextToken(), owners=torch.arange(N) % 2)
    data = FederatedDataModule(owned, num_clients=2, clients_per_round=2, partition=Natural())
    data.setup()
    assert data.num_train(0) == data.num_train(1) == 18
