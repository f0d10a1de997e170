"""The documentation site: the repository's own Markdown, and the API from docstrings.

`make docs` builds it. The source folder is the repository, so that a link between two pages is the
same on a forge and here; what belongs to the site alone is in this folder.
"""

import importlib
import inspect
import re
import shutil
from pathlib import Path

from sphinx import addnodes

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent
MODULES = [name for page in sorted((SITE.parent / "api").glob("*.md"))
           for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))]
EXAMPLES_PAGE = "examples/README"
LANGUAGES = {".py": "python", ".v": "verilog", ".mjs": "javascript", ".sh": "sh"}

project = "Sterna"
author = "the Sterna authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/api/*.md", "examples/*.md",
                    "benchmarks/*.md"]
exclude_patterns = [f"{path.name}/**" for path in ROOT.iterdir()
                    if path.is_dir() and path.name not in ("docs", "examples", "benchmarks")]

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
    """Show what ``__all__`` lists, and each thing once.

    Some packages load their names when asked for; autodoc looks into their dictionary. What several
    offer is shown in the outermost.
    """
    modules = [importlib.import_module(name) for name in MODULES]
    places = {}
    for module in modules:
        for name in module.__all__ if hasattr(module, "__all__") else ():
            value = vars(module)[name] = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                places.setdefault(value, []).append((module, name))
    for offers in places.values():
        home = min(offers, key=lambda offer: len(offer[0].__name__))
        for module, name in offers:
            if (module, name) != home:
                module.__all__ = [each for each in module.__all__ if each != name]


def add_contents(app, docname, source):
    """Give the first page the list of pages, which a forge would show as raw text."""
    if docname == root_doc:
        source[0] += "\n" + (SITE / "contents.md").read_text(encoding="utf-8")


def add_scripts(app, docname, source):
    """Show the examples below their page, where a forge has them one click away."""
    if docname == EXAMPLES_PAGE:
        folder = ROOT / "examples"
        for path in sorted(path for path in folder.rglob("*") if path.suffix in LANGUAGES):
            name = path.relative_to(folder).as_posix()
            source[0] += (f"\n## {name}\n\n```{{literalinclude}} {name}\n"
                          f":language: {LANGUAGES[path.suffix]}\n```\n")


def before_napoleon(app, what, name, value, options, lines):
    """Keep napoleon from two misreadings.

    An example that ends a docstring is no exception of the section before it, and what stands
    before a colon in the first line of a property is not its type.
    """
    first = next((i for i, line in enumerate(lines) if line.startswith(">>>")), None)
    if first and any(line.startswith("---") for line in lines[:first]):
        lines[first:first] = ["Examples", "--------"]
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]      # an empty comment


def hide_values(app, domain, objtype, content):
    """Drop the value of a constant: a table of a page, or a path of the machine that built this."""
    if objtype == "data":
        for part in list(content.parent.findall(addnodes.desc_annotation)):
            if part.astext().startswith(" = "):
                part.parent.remove(part)


def unlink_folders(app, doctree):
    """Leave a link to a folder as its text: a forge lists a folder, a site has no page for it."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst" and (Path(doctree["source"]).parent
                                          / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def copy_pictures(app, error):
    """Bring the pictures to where tags of HTML in the pages name them."""
    if error is None and app.builder.format == "html":
        place = app.outdir / "docs"
        place.mkdir(exist_ok=True)
        for kind in ("*.png", "*.svg"):
            for picture in (ROOT / "docs").glob(kind):
                shutil.copy(picture, place)


def setup(app):
    load_names()
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("object-description-transform", hide_values)
    app.connect("source-read", add_contents)
    app.connect("source-read", add_scripts)
    app.connect("doctree-read", unlink_folders)
    app.connect("build-finished", copy_pictures)
