"""How the site is built: `sphinx-build -W -b html docs build/docs`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it when it is imported
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # plain files are enough for an example
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import torch
from sphinx.application import Sphinx

import stepless

torch.set_num_threads(1)  # tensors of examples are small: a second thread only waits

project = "stepless"
author = "The stepless developers"
project_copyright = "The stepless developers"
version = release = stepless.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "command_line",
    "contest_tables",
    "metric_pages",
    "module_picture",
    "own_names",
    "root_pages",
    "run_blocks",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "gallery_src", "papers", "contest"]
nitpicky = True

# Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings: single backticks name what there is (see own_names)
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
strip_signature_backslash = True  # napoleon then escapes the last character of `weights_`, which else reads as a link
napoleon_custom_sections = ["Shape", "Source"]
maximum_signature_line_length = 90
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos"  # prompts are needed to tell what was typed from what was printed

sphinx_gallery_conf = {
    "examples_dirs": "gallery_src",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "image_srcset": ["2x"],
    "abort_on_example_error": True,
    "download_all_examples": False,
    "min_reported_time": 10_000,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", "plot_style.reset"),
    "plot_gallery": "True",
    "thumbnail_size": (640, 400),
    "capture_repr": ("_repr_html_",),
}

# Looks
html_theme = "furo"
html_title = "stepless"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/mark.svg"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
templates_path = ["_templates"]
html_theme_options = {
    "sidebar_hide_name": False,
    "light_logo": "mark.svg",
    "dark_logo": "mark.svg",
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#1f5fae",
        "color-brand-content": "#1f5fae",
        "color-brand-visited": "#1f5fae",
        "font-stack": 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif',
        "font-stack--monospace": 'ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace',
        "sidebar-item-font-size": "90%",
    },
    "dark_css_variables": {
        "color-brand-primary": "#74aef2",
        "color-brand-content": "#74aef2",
        "color-brand-visited": "#74aef2",
        "color-background-primary": "#14171b",
        "color-background-secondary": "#1a1e23",
    },
}


def setup(app: Sphinx) -> None:
    """Leave out the fields of named tuples: the signature has them, and "Alias for field number 0" says no more."""
    app.connect("autodoc-skip-member", lambda *given: True if type(given[3]).__name__ == "_tuplegetter" else None)
