"""What is installed with the project: versions, licences, and on request known vulnerabilities.

    python tests/check_dependencies.py            list the run-time dependencies, theirs included; 1 if a licence is not permissive
    python tests/check_dependencies.py --audit    also ask pip-audit, where it is installed
    python tests/check_dependencies.py --advisories DIR    compare with a checkout of PyPA's advisory database (its folder `vulns`)

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
        command = ["pip-audit", "--no-deps", "--disable-pip", "--requirement", str(pinned)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    if "could not be audited" in done.stdout + done.stderr:  # it counts these as clean
        print("not audited: the service does not know the packages (a mirror without advisories?)")
        return 1
    return done.returncode


def advisories(packages: list[Package], folder: Path) -> int:
    """Compare the versions with the advisories in a checkout of PyPA's database; 1 where one applies."""
    import yaml
    from packaging.version import Version

    count = hits = 0
    for package in packages:
        for file in sorted((folder / package.name).glob("*.yaml")):
            count += 1
            entry = yaml.safe_load(file.read_text("utf-8"))
            if entry.get("withdrawn"):
                continue
            for affected in entry.get("affected", []):
                inside = package.version in map(str, affected.get("versions") or [])
                for span in affected.get("ranges") or []:
                    if span.get("type") != "ECOSYSTEM":
                        continue
                    begin = next((str(e["introduced"]) for e in span["events"] if "introduced" in e), "0")
                    end = next((str(e[key]) for e in span["events"] for key in ("fixed", "last_affected") if key in e), None)
                    after = Version(package.version) >= Version(begin)
                    inside |= after and (end is None or Version(package.version) < Version(end))
                if inside:
                    hits += 1
                    print(f"{package.name} {package.version}: {entry['id']} {str(entry.get('details', ''))[:120]}")
    print(f"{count} advisories on {len(packages)} packages read, {hits} apply")
    return 1 if hits else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--audit", action="store_true", help="ask pip-audit for known vulnerabilities")
    parser.add_argument("--advisories", type=Path, metavar="DIR", help="compare with the folder `vulns` of PyPA's advisory database")
    options = parser.parse_args()
    packages = closure()
    for package in packages:
        print(f"{package.name:24} {package.version:16} {package.licence}{'' if package.permissive else '   <- not known as permissive'}")
    bad = [package for package in packages if not package.permissive]
    status = audit(packages) if options.audit else 0
    if options.advisories:
        status |= advisories(packages, options.advisories)
    return 1 if bad or status else 0


if __name__ == "__main__":
    sys.exit(main())
