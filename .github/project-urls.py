"""Adds links to the package's metadata: project-urls.py REPOSITORY, at the root of a checkout.

They are not in pyproject.toml, which does not know where the repository is.
"""

import pathlib
import sys
import tomllib

repository = sys.argv[1].rstrip("/")
if not repository.startswith("https://"):
    sys.exit(f"{repository!r} is no address of a repository")
path = pathlib.Path("pyproject.toml")
text = path.read_text()
if "urls" in tomllib.loads(text)["project"]:
    sys.exit("pyproject.toml has project.urls already")
path.write_text(
    f"""{text}
[project.urls]
Repository = "{repository}"
Documentation = "{repository}/blob/main/docs/python.md"
Changelog = "{repository}/blob/main/CHANGELOG.md"
Issues = "{repository}/issues"
"""
)
