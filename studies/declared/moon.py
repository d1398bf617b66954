"""Li, He, Song, MOON: the search for mu."""

from studies.declaration import Study, Sweep

STUDIES = [
    Study(
        name="moon_mu",
        title="MOON: the search for mu",
        claim="A mu of 5 is ahead of smaller ones and of 10.",
        paper="Table 1, CIFAR-10, ten clients: MOON has .691 +- .004 with a mu of 5, the best of a search up to 10.",
        # Validation samples, on which a search would choose, are left out of the config: the clients train on all of theirs.
        sweeps=(Sweep("", "--config moon_cifar10.yaml --set model.mu=0.001,0.01,0.1,1.0,5.0,10.0 --seeds 3"),),
        measures={
            "test_accuracy_last": "last test accuracy",
            "test_accuracy_best": "best test accuracy",
            "processor_seconds": "processor seconds",
        },
        baseline={"model.mu": "5.0"},
    ),
]
