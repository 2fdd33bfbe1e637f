"""Print the lines of a resolution that are of packages which pyproject.toml itself gives a range for.

python requirements/lowest.py RESOLUTION
"""

import re
import sys
import tomllib
from pathlib import Path

# Of one release with pydantic.
WITH_THEM = {"pydantic-core"}


def main() -> None:
    """Print them."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    ranges = {re.split(r"[><=!~]", need)[0] for need in project["dependencies"] if "==" not in need}
    lines = Path(sys.argv[1]).read_text().splitlines()
    sys.stdout.write("\n".join(line for line in lines if line.partition("==")[0] in ranges | WITH_THEM) + "\n")


main()
