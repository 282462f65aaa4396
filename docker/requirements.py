"""Print the requirements of one extra of a pyproject.toml: `requirements.py pyproject.toml engine`."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
print("\n".join([*project["dependencies"], *project["optional-dependencies"][sys.argv[2]]]))
