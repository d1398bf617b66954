"""Clients that fail, on digits: what a class forgets while its holders are away, and which classes a robust rule forgets."""

from studies.declaration import SWEEP, Study, Sweep

_SHORT = (
    "--model.net MLP --callbacks.client_forgetting.every 0 --callbacks.per_class_accuracy.every 0 "
    "--callbacks.per_class_accuracy.clients_every 0 --callbacks.round_forgetting.every 0 --callbacks.label_counts.every 0"
)

# Two classes a client; all eight holders of 8 and 9 are away in rounds 31 to 60 of 120, and with them all of 2.
_HERE = "studies/declared/classes_away"
_HOLDERS = (
    "--config digits_tce.yaml --set model.loss=CrossEntropy,TruncatedCrossEntropy --seeds 4,5,6 "
    f"--data.partition Fixed --data.partition.clients {_HERE}/partition.json"
)
_TRACE = f"--data.client_sampler Trace --data.client_sampler.file {_HERE}/trace.csv"

_RULES = {
    "mean": "",
    "CenteredClipping": " --model.aggregation CenteredClipping --model.aggregation.radius 1",
    "RFA": " --model.aggregation RFA",
    "TrimmedMean": " --model.aggregation TrimmedMean --model.aggregation.hostile 2",
    "CoordinateMedian": " --model.aggregation CoordinateMedian",
    "Multi-Krum": " --model.aggregation Krum --model.aggregation.hostile 2 --model.aggregation.kept 6",
    "Krum": " --model.aggregation Krum --model.aggregation.hostile 2",
}
_ATTACKS = {
    "honest": "",
    "SignFlip": " --model.hostile SignFlip --model.hostile.fraction 0.2 --model.hostile.scale 4",
    "ALIE": " --model.hostile ALIE --model.hostile.fraction 0.2 --model.hostile.z 1.5",
}

_MORE_ATTACKS = {
    "SignFlip": _ATTACKS["SignFlip"],
    "LabelFlip": " --model.hostile LabelFlip --model.hostile.fraction 0.2",
    "IPM": " --model.hostile IPM --model.hostile.fraction 0.2 --model.hostile.epsilon 8",
    "ModelReplacement": " --model.hostile ModelReplacement --model.hostile.fraction 0.2",
}

STUDIES = [
    Study(
        name="digits_classes_away",
        title="Digits: what a class forgets while those who have it are away",
        claim="While all holders of some classes are away for 30 rounds, the global model forgets these classes, with "
        "truncated cross entropy less than with cross entropy; once they are back, it knows them again.",
        paper="In no paper. The setting was found with seed 1: eight of 20 clients hold all samples of 8, 9 and 2, and are "
        "away in rounds 31 to 60. The runs called away end there, so that their final accuracy is that of these rounds; those "
        "called back have 60 more rounds, whose mean is their final accuracy. In those called there, no client is ever away.",
        sweeps=tuple(
            Sweep(name, f"{_HOLDERS} {sampler}--trainer.max_steps {rounds} {_SHORT}")
            for name, sampler, rounds in (("there", "", 60), ("away", f"{_TRACE} ", 60), ("back", f"{_TRACE} ", 120))
        ),
        measures={
            "class_accuracy/lowest": "lowest final accuracy of a class",
            "class_accuracy/unknown": "classes below 0.1",
            "forgetting/from_best/last": "forgetting from best, last",
            "test_accuracy": "final test accuracy",
        },
        baseline={"model.loss": "CrossEntropy"},
        further=(({SWEEP: "away"}, {SWEEP: "there"}), ({SWEEP: "back"}, {SWEEP: "away"})),
        remark="The comparisons of away with there, and of back with away, were declared after the runs.",
    ),
    Study(
        name="digits_robust_rules",
        title="Digits: which classes a robust rule forgets",
        claim="With strong label skew and honest clients, the mean knows more classes than trimmed mean, coordinate median, "
        "Krum and Multi-Krum do. When a fifth of the clients flip signs, every rule ends above the mean.",
        paper="In no paper. The setting, Dirichlet 0.1, 20 clients, ten in each of 60 rounds, was found with seeds 1, 2 and 3.",
        sweeps=tuple(
            Sweep(
                f"{rule}, {attack}",
                f"--config digits_tce.yaml --set model.loss=CrossEntropy --seeds 4,5,6 --trainer.max_steps 60 {_SHORT}"
                f"{with_rule}{with_attack}",
            )
            for attack, with_attack in _ATTACKS.items()
            for rule, with_rule in _RULES.items()
        ),
        measures={
            "test_accuracy": "final test accuracy",
            "class_accuracy/unknown": "classes below 0.1",
            "class_accuracy/lowest": "lowest final accuracy of a class",
        },
        further=tuple(
            ({SWEEP: f"{rule}, {attack}"}, {SWEEP: f"mean, {attack}"})
            for attack in _ATTACKS
            for rule in _RULES
            if rule != "mean"
        ),
        remark="The comparisons with the mean under the same attack were declared after the runs. Before, all settings were "
        "compared with the mean and honest clients.",
        claimed=("test_accuracy", "class_accuracy/unknown"),
    ),
    Study(
        name="digits_attacks",
        title="Digits: four attacks, and the rules against them",
        claim="Each attack by a fifth of the clients makes the mean less accurate than it is with honest clients. Under each, "
        "every rule ends above the mean.",
        paper="In no paper. It is the federation of digits_robust_rules with five other seeds and three more attacks. IPM has "
        "epsilon 8: with two hostile clients of ten, an epsilon above 4 turns the mean around. Sign flips have scale 4, as "
        "there.",
        sweeps=tuple(
            Sweep(
                f"{rule}, {attack}",
                f"--config digits_tce.yaml --set model.loss=CrossEntropy --seeds 11,12,13,14,15 --trainer.max_steps 60 {_SHORT}"
                f"{_RULES[rule]}{with_attack}",
            )
            for attack, rules, with_attack in (
                ("honest", ["mean"], ""),
                *((attack, _RULES, with_attack) for attack, with_attack in _MORE_ATTACKS.items()),
            )
            for rule in rules
        ),
        measures={
            "test_accuracy": "final test accuracy",
            "class_accuracy/unknown": "classes below 0.1",
            "class_accuracy/lowest": "lowest final accuracy of a class",
        },
        further=(
            *(({SWEEP: f"mean, {attack}"}, {SWEEP: "mean, honest"}) for attack in _MORE_ATTACKS),
            *(
                ({SWEEP: f"{rule}, {attack}"}, {SWEEP: f"mean, {attack}"})
                for attack in _MORE_ATTACKS
                for rule in _RULES
                if rule != "mean"
            ),
        ),
        claimed=("test_accuracy",),
    ),
]
