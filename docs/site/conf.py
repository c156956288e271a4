# The site of `make docs`: tools/docs puts docs/*.md, the pages that it makes from the headers and this file in
# one folder and runs Sphinx on it. Any warning is an error there.
import os
import sys

sys.path.insert(0, os.environ["ADL_DOCS_PYTHON"])
project = "AdaptDL in C"
author = "the AdaptDL authors"
version = release = os.environ["ADL_DOCS_VERSION"]
extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"AdaptDL {version}"
html_show_copyright = False
html_copy_source = False
highlight_language = "none"
root_doc = "index"
exclude_patterns = ["site"]
myst_heading_anchors = 4
myst_enable_extensions = []
breathe_projects = {"adaptdl": os.environ["ADL_DOCS_XML"]}
breathe_default_project = "adaptdl"
breathe_domain_by_extension = {"h": "c"}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of PyTorch are its own
# Names of C that a signature uses and no header of ours declares, and macros between them.
c_id_attributes = ["ADL_API", "ADL_MUST"]


def escape_stars(app, what, name, obj, options, lines):
    lines[:] = [line.replace(":param **", r":param \*\*").replace(":param *", r":param \*") for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", escape_stars, priority=900)  # after napoleon
