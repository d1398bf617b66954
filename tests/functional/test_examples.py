"""Every public function of the mathematics shows an example in its docstring, and the examples give what they say."""

import doctest
import inspect
import sys

import pytest

from fl_lightning import functional

_FUNCTIONS = {name: getattr(functional, name) for name in functional.__all__ if inspect.isfunction(getattr(functional, name))}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_the_example_in_a_docstring_gives_what_it_says(name):
    function = _FUNCTIONS[name]
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=vars(sys.modules[function.__module__]).copy())

    assert example.examples, f"{name} shows no example"
    assert doctest.DocTestRunner().run(example).failed == 0
