"""The catalogues of Xid, SXid and NVLink5 codes and of reasons to set lines aside (`rules/catalogue`), read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from forensics.packs import read_toml

FOLDER = Path(__file__).resolve().parent / "catalogue"


@dataclass(slots=True, frozen=True)
class Code:
    """One code.  `kind`: hardware driver application symptom precursor verdict noise; `cause` may be None; texts by language."""

    number: int
    mnemonic: str
    kind: str
    weight: float
    cause: str | None
    name: dict[str, str]
    meaning: dict[str, str]
    action: dict[str, str]
    drain: bool = False


@dataclass(slots=True, frozen=True)
class SwitchCode:
    """One NVSwitch code.  `fatality`: always, fatal, maybe, line (only the line tells) or no."""

    number: int
    mnemonic: str
    unit: dict[str, str]
    fault: dict[str, str]
    fault_id: str
    fatality: str
    stalls: bool
    harmless: bool


def _read(name: str) -> dict[str, Any]:
    return read_toml(FOLDER / name)


@cache
def xids() -> dict[int, Code]:
    """Every Xid of the catalogue."""
    return {
        int(number): Code(
            int(number),
            entry["mnemonic"],
            entry["class"],
            float(entry["weight"]),
            entry.get("cause"),
            entry["name"],
            entry["meaning"],
            entry["action"],
            bool(entry.get("drain")),
        )
        for number, entry in _read("xid.toml").items()
    }


def xid(number: int) -> Code:
    """The code, or one of unknown meaning that counts as the driver's."""
    unknown = {"en": "code not in the catalogue", "zh": "目录中没有的代码"}
    return xids().get(number) or Code(
        number, "", "driver", 0.3, "infra/gpu-hang", unknown, unknown, {"en": "look it up", "zh": "查阅该代码"}
    )


@cache
def reasons() -> dict[str, dict[str, str]]:
    """Why lines are set aside: reason -> language -> words."""
    return _read("reasons.toml")


@cache
def sxids() -> dict[int, SwitchCode]:
    """Every SXid of the catalogue."""
    data = _read("sxid.toml")
    stalls, harmless = set(data["stalls"]), set(data["harmless"])
    found = {}
    for number, (mnemonic, unit, fault, fatality) in data["codes"].items():
        code = int(number)
        found[code] = SwitchCode(
            code, mnemonic, data["units"][unit], data["faults"][fault], fault, fatality, code in stalls, code in harmless
        )
    return found


@cache
def _nvlink5() -> dict[tuple[int, str, int], tuple[str, str, str, bool]]:
    return {(row[0], row[1], row[2]): (row[3], row[4], row[5], row[6]) for row in _read("nvlink5.toml")["rows"]}


def nvlink5(number: int, unit: str | None, status: int | None) -> dict[str, Any]:
    """What the tables say of an NVLink5 error: `severity`, `immediate`, `then`, `crash`; empty where they say nothing.

    Several status bits may be set: the worst of them counts.
    """
    if unit is None or status is None:
        return {}
    table = _nvlink5()
    rows = [table[(number, unit, bit)] for bit in (1 << n for n in range(32)) if status & bit and (number, unit, bit) in table]
    if not rows:
        return {}
    worst = max(rows, key=lambda row: (row[0] == "Fatal", row[3], row[1] == "RESET_GPU"))
    return {"severity": worst[0], "immediate": worst[1], "then": worst[2], "crash": worst[3]}
