"""What is installed with the project: versions, licences, and on request known vulnerabilities.

    python tests/check_dependencies.py            list the run-time dependencies, theirs included; 1 if a licence is not permissive
    python tests/check_dependencies.py --audit    also ask pip-audit, where it is installed

Licences are read from the installed packages' own metadata: nothing is downloaded without `--audit`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = "train-forensics"
PERMISSIVE = re.compile(r"\b(?:MIT|BSD|Apache|ISC|PSF|Python Software Foundation|CNRI|Zlib|0BSD|Unlicense|CC0|MPL)\b", re.I)
# Weak copyleft and the like are let through by name only: what they ask is kept when the package is used unchanged.
STRICT = re.compile(r"\b(?:AGPL|GPL|SSPL|BUSL|Commons Clause)\b")


@dataclass(frozen=True)
class Package:
    """An installed distribution with the licence that its metadata tells."""

    name: str
    version: str
    licence: str

    @property
    def permissive(self) -> bool:
        return bool(PERMISSIVE.search(self.licence)) and (not STRICT.search(self.licence) or " OR " in self.licence)


def canonical(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(name: str) -> list[str]:
    """Names that an installed distribution requires here, extras left out."""
    from packaging.requirements import Requirement

    out = []
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            out.append(canonical(requirement.name))
    return out


def licence(name: str) -> str:
    """The licence: its SPDX expression, else the classifiers, else the first line of the text."""
    found = metadata.metadata(name)
    expression = found.get("License-Expression")
    if expression:
        return expression
    classifiers = [
        c.rpartition(":: ")[2] for c in found.get_all("Classifier") or [] if c.startswith("License ::") and not c.endswith("OSI Approved")
    ]
    if classifiers:
        return ", ".join(classifiers)
    text = (found.get("License") or "").strip()
    return text.splitlines()[0][:80] if text else "?"


def closure(root: str = ROOT) -> list[Package]:
    """Every distribution that is needed at run time, by name; those that are not installed are left out."""
    seen: dict[str, Package] = {}
    pending = requirements(root)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        try:
            seen[name] = Package(name, metadata.version(name), licence(name))
        except metadata.PackageNotFoundError:
            continue
        pending += requirements(name)
    return [seen[name] for name in sorted(seen)]


def audit(packages: list[Package]) -> int:
    """Ask pip-audit about exactly these versions; 0 where it finds nothing or is not there."""
    if shutil.which("pip-audit") is None:
        print("pip-audit is not installed: pip install pip-audit")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "pinned.txt")
        pinned.write_text("".join(f"{p.name}=={p.version}\n" for p in packages))
        return subprocess.run(["pip-audit", "--no-deps", "--disable-pip", "--requirement", str(pinned)], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--audit", action="store_true", help="ask pip-audit for known vulnerabilities")
    options = parser.parse_args()
    packages = closure()
    for package in packages:
        print(f"{package.name:24} {package.version:16} {package.licence}{'' if package.permissive else '   <- not known as permissive'}")
    bad = [package for package in packages if not package.permissive]
    status = audit(packages) if options.audit else 0
    return 1 if bad or status else 0


if __name__ == "__main__":
    sys.exit(main())
