"""Sphinx: Markdown by MyST, docstrings by autodoc, formulas by KaTeX, all of it without the internet."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import fl_lightning

sys.path.insert(0, str(Path(__file__).parent))

from api import homes
from formulas import with_formulas
from line_breaks import with_line_breaks
from method_pages import documented_methods

project = "fl-lightning"
author = "The fl-lightning authors"
release = fl_lightning.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.katex",
]
html_math_renderer = "katex"
katex_css_path = "katex/katex.min.css"  # with its fonts; the scripts are in the wheel
include_patterns = ["*.md", "benchmarks/*.md", "docs/**"]
exclude_patterns = ["CODE_OF_CONDUCT.md", "SECURITY.md", "docs/site"]
highlight_language = "none"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # only those that have changed since the last build
nb_execution_in_temp = True
nb_execution_timeout = 1200
nb_output_stderr = "remove"
nb_merge_streams = True

templates_path = [str(Path(__file__).parent / "templates")]
autosummary_ignore_module_all = False
autosummary_context = {"homes": homes(), "methods": [*documented_methods()]}
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a hook that a class overrides is described once
toc_object_entries_show_parents = "hide"
add_function_parentheses = False  # of the names in the narrow sidebar
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

html_theme = "pydata_sphinx_theme"
html_title = "fl-lightning"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
# The address of the repository, which a clone does not know. With it, pages that are files there have a link to edit them.
repository = os.environ.get("FL_LIGHTNING_REPOSITORY", "").rstrip("/")
html_context = {"edit_page_url_template": f"{repository}/edit/main/{{{{ file_name }}}}"}
html_theme_options = {
    "logo": {"text": f"fl-lightning {release}"},
    "use_edit_page_button": bool(repository),
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": ["theme-version"],
}
copybutton_prompt_text = "$ "


def _link_to_edit(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Only for pages of the repository: the others are written from the code."""
    if not any((Path(__file__).parents[2] / f"{page}{suffix}").is_file() for suffix in (".md", ".ipynb")):
        context["theme_use_edit_page_button"] = False


def _prepare(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """Set the formulas of a docstring; leave out the section Round, which is a row of a method's page."""
    text = re.sub(r"^Round:\n(?: +\S.*\n?)+", "", "\n".join(lines), flags=re.MULTILINE)
    lines[:] = with_formulas(text).split("\n")


def _break_names(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    if "body" in context:  # a page of text
        context["body"] = with_line_breaks(context["body"])


def setup(app: Sphinx) -> None:
    """What Sphinx calls at its start."""
    app.connect("autodoc-process-docstring", _prepare, priority=400)  # before napoleon
    app.connect("html-page-context", _link_to_edit, priority=900)  # after the theme
    app.connect("html-page-context", _break_names)
