"""Print requirements of pyproject.toml, one a line: the dependencies and the extras named, less large ones."""

import re
import sys
import tomllib
from pathlib import Path

LEFT_OUT = {
    "torch",
    # Only notebooks and the tests in a browser use these.
    *("jupyterlab", "notebook", "playwright", "scikit-learn"),
    # Only tests of tables use these, and most of those need torch as well.
    *("duckdb", "pandas", "polars", "pyarrow", "tensorboard"),
}

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
requirements = set(project["dependencies"])
for extra in sys.argv[1:]:
    requirements.update(project["optional-dependencies"][extra])
for requirement in sorted(requirements):
    if re.split(r"[^\w.-]", requirement)[0] not in LEFT_OUT:
        print(requirement)
