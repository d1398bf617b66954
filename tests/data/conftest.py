"""What the tests of the data share."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache for every test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(folder))
    return folder


@pytest.fixture
def no_more_decoding(monkeypatch):
    """Call it, and every image that is decoded from then on fails the test."""

    def forbid():
        for name in ("PIL.Image.Image.convert", "PIL.ImageFile.ImageFile.load"):
            monkeypatch.setattr(name, lambda *_, **__: pytest.fail("decoded although it lies in the cache"))

    return forbid
