"""Every public function of the mathematics shows an example in its docstring, and the examples give what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

from fl_lightning import functional

_NO_MATHEMATICS = {"random_streams", "schedules", "transfers"}
_MODULES = [
    importlib.import_module(part.name)
    for part in pkgutil.walk_packages(functional.__path__, f"{functional.__name__}.")
    if part.name.rpartition(".")[2] not in _NO_MATHEMATICS
]
_FUNCTIONS = {
    name: function
    for module in _MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}


def test_every_exported_function_is_among_them():
    assert {name for name in functional.__all__ if inspect.isfunction(getattr(functional, name))} <= _FUNCTIONS.keys()


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_the_example_in_a_docstring_gives_what_it_says(name):
    function = _FUNCTIONS[name]
    known = vars(inspect.getmodule(function)).copy()
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=known)

    assert example.examples, f"{name} shows no example"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0
