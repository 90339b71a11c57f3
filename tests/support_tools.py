"""Stand-ins for the tools of a GPU machine: small scripts on a path of their own that answer in the real ones' forms."""

from __future__ import annotations

import stat
from pathlib import Path

SMI = r"""#!/bin/sh
# Form of nvidia-smi 550: CSV queries answered field by field, an unknown field refused with status 2.
case "$1" in
  --query-gpu=*)
    fields=${1#--query-gpu=}
    if [ -n "$SMI_OLD" ] && echo "$fields" | grep -q clocks_throttle; then
      echo "Field \"clocks_throttle_reasons.active\" is not a valid field to query."; exit 2
    fi
    if [ -n "$SMI_LOST" ]; then
      echo "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"; exit 15
    fi
    echo "$*" | grep -q noheader || echo "$fields" | sed 's/,/, /g; s/memory.used/memory.used [MiB]/'
    for gpu in 0 1; do
      row=
      for field in $(echo "$fields" | tr , ' '); do
        case $field in
          timestamp) value="2026/11/28 10:00:00.123";; index) value=$gpu;; uuid) value=GPU-0000000$gpu-1111-2222-3333-444444444444;;
          name) value="NVIDIA H100 80GB HBM3";; pci.bus_id) value=00000000:3$gpu:00.0;; driver_version) value=550.54.15;;
          temperature.gpu) value=41;; utilization.gpu) value=97;; memory.used) value=71234;; memory.total) value=81559;;
          power.draw) value=412.50;; power.limit) value=700.00;; clocks.sm) value=1755;; clocks_throttle_reasons.active) value=0x0000000000000000;;
          ecc*) value=0;; pcie.link.gen.current) value=5;; pcie.link.width.current) value=16;; *) value="[N/A]";;
        esac
        row="$row${row:+, }$value"
      done
      echo "$row"
    done;;
  --query-compute-apps=*) echo "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"; echo "GPU-00000000-1111-2222-3333-444444444444, 4242, python, 71000 MiB";;
  topo) printf '\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-47\nGPU1\tNV18\t X \t0-47\n';;
  nvlink) echo "GPU 0: NVIDIA H100 80GB HBM3"; exit 0;;
  -q) echo "==============NVSMI LOG=============="; echo "Driver Version                            : 550.54.15";;
  *) echo "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |";;
esac
"""


def tools(folder: Path, **scripts: str) -> Path:
    """A folder with these executables (`nvidia_smi` becomes nvidia-smi)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder
