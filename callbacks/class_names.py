"""How pictures name classes: where they arrive, with the rounds in which they came and went."""

from fl_lightning.module import FederatedModule


def class_names(module: FederatedModule) -> list[str]:
    """Names of the classes in label order; of arriving ones as ``3 (rounds 7 to 12)``, between which clients have samples."""
    names, progress = list(module.data.classes), module.class_progress()
    if progress is None:
        return names
    rounds = progress.rounds_per_task
    spans = module.data.class_streams.positions_of_classes()
    return [
        name if span is None else f"{name} (rounds {span[0] * rounds + 1} to {(span[1] + 1) * rounds})"
        for name, span in zip(names, spans, strict=True)
    ]
