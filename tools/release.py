"""What a release needs beside the build: the version in its places, the changelog's section, manifests of package managers.

python -m tools.release cut 0.2.0                 version and changelog of a release, before its tag
python -m tools.release check v0.2.0              the tag is the version that is built, and the changelog has it
python -m tools.release notes v0.2.0              the changelog's section
python -m tools.release manifests dist FOLDER     Homebrew's formula and Scoop's manifest, from the files in dist
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = "https://github.com/gpuwise/gpuwise"
FILES = "https://files.pythonhosted.org/packages/source/g/gpuwise"
_SECTION = re.compile(r"^## \[([^\]]+)\].*$", re.MULTILINE)


def version(root: Path = ROOT) -> str:
    """The version of pyproject.toml. Raises SystemExit where ``version.py`` has another."""
    built = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if f'VERSION = "{built}"' not in (root / "src/gpuwise/version.py").read_text("utf-8"):
        raise SystemExit(f"src/gpuwise/version.py is not at {built}, as pyproject.toml is")
    return built


def notes(tag: str, root: Path = ROOT) -> str:
    """The changelog's section of ``tag``. Raises SystemExit where it has none."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    heads = [*_SECTION.finditer(text)]
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if head[1] == tag.removeprefix("v"):
            return text[head.end() : following.start() if following else len(text)].strip() + "\n"
    raise SystemExit(
        f"CHANGELOG.md has no section {tag.removeprefix('v')}: run `python -m tools.release cut {tag.removeprefix('v')}`"
    )


def check(tag: str, root: Path = ROOT) -> None:
    """Raises SystemExit where ``tag`` is not the version that is built, or the changelog lacks it."""
    if tag != f"v{version(root)}":
        raise SystemExit(f"the tag {tag} is not v{version(root)}, the version of pyproject.toml")
    notes(tag, root)


def cut(new: str, day: datetime.date, root: Path = ROOT) -> None:
    """Write ``new`` as the version, and what is unreleased as its section of the changelog."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", new):
        raise SystemExit(f"{new!r} is not a version like 0.2.0")
    old = version(root)
    for name, before in (("pyproject.toml", f'version = "{old}"'), ("src/gpuwise/version.py", f'VERSION = "{old}"')):
        path = root / name
        path.write_text(path.read_text("utf-8").replace(before, before.replace(old, new), 1), "utf-8")
    path = root / "CHANGELOG.md"
    text = path.read_text("utf-8")
    path.write_text(text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{new}] - {day.isoformat()}\n", 1), "utf-8")


def manifests(dist: Path) -> dict[str, str]:
    """Homebrew's formula and Scoop's manifest by file name; both install the sdist in ``dist`` in an environment."""
    [source] = dist.glob("gpuwise-*.tar.gz")
    number = source.name.removeprefix("gpuwise-").removesuffix(".tar.gz")
    digest, url = hashlib.sha256(source.read_bytes()).hexdigest(), f"{FILES}/{source.name}"
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["description"].rstrip(".")
    formula = f"""class Gpuwise < Formula
  include Language::Python::Virtualenv

  desc "{about}"
  homepage "{HOME}"
  url "{url}"
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on "python@3.12"

  def install
    system "python3.12", "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--no-cache-dir", buildpath
    bin.install_symlink libexec/"bin/gpuwise"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/gpuwise --version")
  end
end
"""
    scoop = {
        "version": number,
        "description": about,
        "homepage": HOME,
        "license": "Apache-2.0",
        "depends": "python",
        "url": url,
        "hash": f"sha256:{digest}",
        "extract_dir": f"gpuwise-{number}",
        "installer": {"script": ['python -m venv "$dir\\env"', '& "$dir\\env\\Scripts\\pip.exe" install --no-cache-dir "$dir"']},
        "bin": "env\\Scripts\\gpuwise.exe",
        "checkver": {"url": "https://pypi.org/pypi/gpuwise/json", "jsonpath": "$.info.version"},
    }
    return {"gpuwise.rb": formula, "gpuwise.json": json.dumps(scoop, indent=4) + "\n"}


def main() -> None:
    match sys.argv[1:]:
        case ["cut", new]:
            cut(new, datetime.date.today())
        case ["check", tag]:
            check(tag)
        case ["notes", tag]:
            sys.stdout.write(notes(tag))
        case ["manifests", dist, folder]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for name, text in manifests(Path(dist)).items():
                (Path(folder) / name).write_text(text, "utf-8")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
