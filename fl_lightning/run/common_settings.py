"""The settings that the server of a real federation and all of its sites must share."""

from typing import Any

from fl_lightning import __version__
from fl_lightning.data import FederatedDataModule
from fl_lightning.run.settings import RunSettings, Settings, described, digest

_SHOWN = 60  # characters of a value
_VERSION, _SHAPE, _CLASSES = "the version of fl-lightning", "shape of the samples", "classes of the samples"
_CURES = {
    _VERSION: "install the server's version at the site",
    _SHAPE: "give the site samples of the server's shape",
    _CLASSES: "give the site the server's classes; in an image folder, one without samples has an empty folder",
    "data.mean": "set data.mean and data.std in the config, and give the site the new folder of fl-lightning federation init",
}
_OTHER_FOLDER = "give the site the folder of fl-lightning federation init that the server runs"


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
    of_data = {key: getattr(data, key) for key in ("num_clients", "batch_size", "val_fraction", "test_fraction", "seed")}
    return {
        _VERSION: __version__,
        _SHAPE: inputs.net_shape,
        _CLASSES: list(inputs.classes),
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
    """The first differing keys with both values, and what to do; empty if all are equal."""
    keys = [key for key in {**server, **site} if server.get(key) != site.get(key)]
    if not keys:
        return ""
    shown = [_difference(key, server.get(key), site.get(key)) for key in keys[:3]]
    return f"{'; '.join(shown)}: {_CURES.get(keys[0], _OTHER_FOLDER)}"


def _difference(key: str, server: Any, site: Any) -> str:
    if key == _CLASSES and server is not None:  # of this version
        unlike = [name for name in server if name not in site], [name for name in site if name not in server]
        if any(unlike):
            parts = [f"{word} {_short(', '.join(names))}" for word, names in zip(("lack", "add"), unlike, strict=True) if names]
            return f"{key} {' and '.join(parts)}"
    texts = [" ".join(str(value).split()) for value in (site, server)]
    unlike = (place for place, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    first = next(unlike, min(map(len, texts)))  # character that differs
    start = 0 if first < _SHOWN else first - _SHOWN // 2
    here, there = (_short(text, start) for text in texts)
    return f"{key} is {here}, {there} at the server"


def _short(text: str, start: int = 0) -> str:
    end = start + _SHOWN
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"
