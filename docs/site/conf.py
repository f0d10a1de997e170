"""The documentation site: the repository's own Markdown, and the API from docstrings.

`make docs` builds it. The source folder is the repository, so that a link between two pages is the
same on a forge and here; what belongs to the site alone is in this folder.
"""

import importlib
from pathlib import Path

from sphinx import addnodes

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent
# Their names are loaded when asked for: ask, so that autodoc sees what __all__ lists.
LAZY_PACKAGES = ("sterna.export", "sterna.hw", "sterna.model", "sterna.sim")

project = "Sterna"
author = "the Sterna authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/api/*.md"]
exclude_patterns = [f"{path.name}/**" for path in ROOT.iterdir()
                    if path.is_dir() and path.name != "docs"]

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
python_maximum_signature_line_length = 60
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = False
napoleon_custom_sections = [("Members", "params_style")]

html_theme = "furo"
html_title = "Sterna"
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["sterna.css"]
html_copy_source = False
html_show_sphinx = False
linkcheck_timeout = 20


def load_names():
    """Put the names of each package's ``__all__`` where autodoc looks: in its dictionary."""
    for package in map(importlib.import_module, LAZY_PACKAGES):
        for name in getattr(package, "__all__", ()):
            vars(package)[name] = getattr(package, name)


def add_contents(app, docname, source):
    """Give the first page the list of pages, which a forge would show as raw text."""
    if docname == root_doc:
        source[0] += "\n" + (SITE / "contents.md").read_text(encoding="utf-8")


def before_napoleon(app, what, name, value, options, lines):
    """Keep napoleon from two misreadings.

    An example that ends a docstring is no exception of the section before it, and what stands
    before a colon in the first line of a property is not its type.
    """
    first = next((i for i, line in enumerate(lines) if line.startswith(">>>")), None)
    if first and any(line.startswith("---") for line in lines[:first]):
        lines[first:first] = ["Examples", "--------"]
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def hide_values(app, domain, objtype, content):
    """Drop the value of a constant: a table of a page, or a path of the machine that built this."""
    if objtype == "data":
        for part in list(content.parent.findall(addnodes.desc_annotation)):
            if part.astext().startswith(" = "):
                part.parent.remove(part)


def setup(app):
    load_names()
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("object-description-transform", hide_values)
    app.connect("source-read", add_contents)
