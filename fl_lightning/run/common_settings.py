"""The settings that the server of a real federation and all of its sites must share."""

from typing import Any

from fl_lightning import __version__
from fl_lightning.data import FederatedDataModule
from fl_lightning.run.settings import RunSettings, Settings, described, digest

_SHOWN = 60  # characters of a value


def common_settings(method: Any, data: FederatedDataModule) -> Settings:
    """By key: the version, the method's arguments, the exchanged tensors, and how the data reaches the net.

    Args:
        method: a ``FederatedModule`` with its net built.
        data: data that is set up, of the server or of a site.
    """
    settings: RunSettings = method.settings
    inputs = data.samples.input_record
    tensors = {f"{name} of model.net": f"{v.dtype} {tuple(v.shape)}" for name, v in method.net.state_dict().items()}
    frozen = dict((*method.net.named_parameters(), *method.net.named_buffers()))
    of_data = {key: getattr(data, key) for key in ("num_clients", "batch_size", "val_fraction", "seed")}
    return {
        "the version of fl-lightning": __version__,
        "shape of the samples": inputs.net_shape,
        "classes of the samples": list(inputs.classes),
        "data.mean": inputs.mean,
        "data.std": inputs.std,
        **{f"data.{key}": value for key, value in of_data.items()},
        **described("data.augment", data.augment),
        **settings.of_method(),
        **tensors,
        # They are not sent, so a site has those that it builds or loads by model.net.
        "frozen weights of model.net": digest(*(frozen[name] for name in sorted(method.constant_names))),
    }


def differences(server: Settings, site: Settings) -> str:
    """The first differing keys with both values, and what to do; empty if all are equal.

    Args:
        server: settings of the server.
        site: settings of a site.
    """
    keys = [key for key in {**server, **site} if server.get(key) != site.get(key)]
    if not keys:
        return ""
    shown = [f"{key} is {_short(site.get(key))}, {_short(server.get(key))} at the server" for key in keys[:3]]
    return "; ".join(shown) + ": give the site the folder of fl-lightning federation init that the server runs"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
