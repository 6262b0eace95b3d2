"""The site: `make docs` builds it into out/site.

The root of the repository is the source folder, so that a relative link leads to the same place as on a code host. The
two tutorials are Markdown that Jupyter opens; the build runs them, and the examples of the gallery, as a reader would.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where the modules beside this file are found

import ssse
from site_gallery import NOT_RUN

project = "ssse"
author = "the authors of ssse"
version = release = ssse.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/gallery/*.rst",
    "benchmarks/README.md",
    "results/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".venv", "out"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "site_docstrings",
    "site_finish",
]

# Markdown
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["config.cache"]

# Notebooks: run anew where their text changed, and a cell that fails ends the build.
nb_execution_mode = "cache"
nb_execution_cache_path = "out/site-cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# Every script is run in its folder, and one that fails ends the build.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": rf"/(?!{'|'.join(NOT_RUN)})\w+\.py$",
    "image_scrapers": ("site_gallery.written_figures",),
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "reset_modules": (),
    "parallel": 2,
    "default_thumb_file": "docs/static/no-figure.svg",
    "thumbnail_size": (400, 280),
}

# Docstrings quote code with single backticks.
napoleon_custom_sections = [("Attributes", "params_style")]
default_role = "literal"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

# What is seen
html_theme = "furo"
html_title = "ssse"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
