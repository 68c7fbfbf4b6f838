"""Print the requirements of the tests that need no torch, one a line: those of pyproject.toml, less the large ones."""

import re
import tomllib
from pathlib import Path

EXTRAS = ("test", "debug", "metrics", "demo")
LEFT_OUT = {
    "torch",
    # Only notebooks and the tests in a browser use these.
    *("jupyterlab", "notebook", "playwright", "scikit-learn"),
    # Only tests of tables use these, and most of those need torch as well.
    *("duckdb", "pandas", "polars", "pyarrow", "tensorboard"),
}

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
requirements = set(project["dependencies"])
for extra in EXTRAS:
    requirements.update(project["optional-dependencies"][extra])
for requirement in sorted(requirements):
    if re.split(r"[^\w.-]", requirement)[0] not in LEFT_OUT:
        print(requirement)
