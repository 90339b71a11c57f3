"""Readers of the software environment: packages, versions in logs, environment variables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_lines import facts, feed, head, parse_file

import parsers
from parsers import environment, environment_variables, packages, snapshot_files
from parsers.base import FileParser, LineParser


def lines_of(module: object) -> tuple[LineParser, ...]:
    found = module.PARSER  # type: ignore[attr-defined]
    return tuple(p for p in (found if isinstance(found, tuple) else (found,)) if isinstance(p, LineParser))


def file_of(module: object) -> FileParser:
    return next(p for p in module.PARSER if isinstance(p, FileParser))  # type: ignore[attr-defined]


# pip 24
PIP_LIST = """Package                  Version
------------------------ ------------------
accelerate               0.30.1
flash_attn               2.5.8
torch                    2.3.1+cu121
my-project               0.1.dev3+g1234567  /srv/code/my-project
transformers             4.41.2

Done.
vllm                     9.9.9
"""


def test_pip_list_ends_where_its_table_ends() -> None:
    rows = feed(lines_of(packages), PIP_LIST)
    assert facts(rows, "version.flash-attn") == ["2.5.8"]
    assert facts(rows, "version.torch") == ["2.3.1+cu121"]
    assert facts(rows, "version.cuda") == ["12.1"]
    assert facts(rows, "version.my-project") == ["0.1.dev3+g1234567"]
    assert facts(rows, "version.vllm") == []
    assert ("version.transformers", "4.41.2", 7) in rows.facts


def test_conda_list() -> None:
    text = "# packages in environment at /opt/conda/envs/rl:\n#\n# Name                    Version                   Build  Channel\ncudatoolkit               11.8.0               h6a678d5_0\npytorch                   2.1.2           py3.10_cuda11.8_cudnn8.7.0_0    pytorch\n"
    rows = feed(lines_of(packages), text)
    assert facts(rows, "version.pytorch") == ["2.1.2"]
    assert facts(rows, "version.cudatoolkit") == ["11.8.0"]


FREEZE = """# wandb writes this beside each run
accelerate==1.2.1
deepspeed==0.16.3
-e git+https://github.com/example/trainer@0123456789#egg=trainer
flash-attn @ https://example.org/wheels/flash_attn-2.7.4.post1+cu12torch2.6-cp311-cp311-linux_x86_64.whl
numpy==1.26.4 ; python_version >= "3.9"
torch==2.6.0+cu124
"""


def test_frozen_requirements() -> None:
    parser = file_of(packages)
    data = FREEZE.encode()
    assert parser.recognises(head("requirements.txt", data)) > 0.5
    rows = parse_file(parser, "requirements.txt", data)
    assert facts(rows, "version.numpy") == ["1.26.4"]
    assert facts(rows, "version.flash-attn") == ["2.7.4.post1+cu12torch2.6"]
    assert facts(rows, "version.cuda") == ["12.4"]


@pytest.mark.parametrize(
    "text",
    [
        "step==1\nepoch 3\nloss: 2\n" * 4,
        "2026-03-14 06:17:40 INFO assert a==b\n" * 5,
        'torch==2.6.0\n[rank0]: Traceback (most recent call last):\n  File "x.py", line 1\nValueError: x\n',
        "torch\nnumpy\ntransformers\n",
    ],
)
def test_logs_are_no_requirement_files(text: str) -> None:
    assert file_of(packages).recognises(head("train.log", text.encode())) <= 0.5


def test_pip_says_what_it_installed() -> None:
    rows = feed(lines_of(packages), "Successfully installed certifi-2024.2.2 torch-2.4.0 nvidia-nccl-cu12-2.20.5 trl-0.9.6\n")
    assert facts(rows, "version.torch") == ["2.4.0"]
    assert facts(rows, "version.nvidia-nccl-cu12") == ["2.20.5"]


# torch 2.4, `python -m torch.utils.collect_env`
COLLECT = """Collecting environment information...
PyTorch version: 2.4.0+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.10.14 (main, May  6 2024, 19:42:50) [GCC 11.2.0] (64-bit runtime)
CUDA runtime version: 12.4.131
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 550.54.15
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0

CPU:
CPU(s):                             192

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.4.0+cu121
[conda] Could not collect
"""


def test_collect_env() -> None:
    rows = feed((*lines_of(environment), *lines_of(packages)), COLLECT)
    assert facts(rows, "version.torch")[0] == "2.4.0+cu121"
    assert set(facts(rows, "version.cuda")) == {"12.1"}
    assert facts(rows, "version.driver")[0] == "550.54.15"
    assert facts(rows, "version.python")[0] == "3.10.14"
    assert facts(rows, "version.numpy") == ["1.26.4"]
    assert facts(rows, "gpu.count") == [2]
    assert facts(rows, "version.rocm") == []


def test_ds_report() -> None:
    text = """DeepSpeed general environment info:
torch install path ............... ['/opt/conda/lib/python3.10/site-packages/torch']
torch version .................... 2.3.1+cu121
deepspeed install path ........... ['/opt/conda/lib/python3.10/site-packages/deepspeed']
deepspeed info ................... 0.14.4, unknown, unknown
torch cuda version ............... 12.1
torch hip version ................ None
nvcc version ..................... 12.4
shared memory (/dev/shm) size .... 1007.66 GB
"""
    rows = feed(lines_of(environment), text)
    assert facts(rows, "version.deepspeed") == ["0.14.4"]
    assert facts(rows, "version.cuda") == ["12.1"]
    assert facts(rows, "version.nvcc") == ["12.4"]
    assert facts(rows, "version.rocm") == []


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("Cuda compilation tools, release 12.4, V12.4.131", "nvcc", "12.4"),
        ("INFO 11-02 10:00:00 api_server.py:528] vLLM API server version 0.6.3.post1", "vllm", "0.6.3.post1"),
        ("INFO 03-14 06:17:40 [core.py:61] Initializing a V1 LLM engine (v0.8.4) with config: model='x'", "vllm", "0.8.4"),
        ("INFO llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config", "vllm", "0.6.3.post1"),
        ("PyTorch version 2.4.0 available.", "torch", "2.4.0"),
        ("torch.__version__ = 2.1.0a0+32f93b1", "torch", "2.1.0a0+32f93b1"),
        ("Transformers version: 4.44.2", "transformers", "4.44.2"),
        (
            "[2026-03-14 06:17:40,101] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.4, git-hash=unknown",
            "deepspeed",
            "0.14.4",
        ),
        ("torch.version.cuda: 12.1", "cuda", "12.1"),
        ("Driver Version: 535.104.05", "driver", "535.104.05"),
        ("cudnn version: 90100", "cudnn", "9.1.0"),
    ],
)
def test_versions_that_logs_name(line: str, key: str, value: str) -> None:
    assert facts(feed(lines_of(environment), line), f"version.{key}") == [value]


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: this needs transformers version: 4.46.0 or later, please upgrade",
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1).",
        "loading checkpoint version: 3.0",
        "trl requires accelerate version: 0.30.0",
        "epoch version: 1.5",
    ],
)
def test_wishes_and_other_versions_are_no_facts(line: str) -> None:
    assert feed(lines_of(environment), line).facts == []


# ------------------------------------------------------------------------------------------------ environment variables


def test_assignments_at_the_head_of_a_line() -> None:
    text = (
        "export NCCL_DEBUG=INFO\n+ export NCCL_SOCKET_IFNAME=eth0\nNCCL_IB_DISABLE=1 CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node 3 train.py\n"
        '    "NCCL_P2P_LEVEL=NVL",\n  - NCCL_TIMEOUT=1800\nPYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"\n'
    )
    rows = feed(lines_of(environment_variables), text)
    assert {key: value for key, value, _ in rows.facts} == {
        "env.NCCL_DEBUG": "INFO",
        "env.NCCL_SOCKET_IFNAME": "eth0",
        "env.NCCL_IB_DISABLE": "1",
        "env.CUDA_VISIBLE_DEVICES": "0,1,2",
        "env.NCCL_P2P_LEVEL": "NVL",
        "env.NCCL_TIMEOUT": "1800",
        "env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


@pytest.mark.parametrize(
    "line",
    [
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "If reserved memory is large but unallocated try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "You can disable peer access with NCCL_P2P_DISABLE=1",
        "n0:1:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
    ],
)
def test_advice_is_no_setting(line: str) -> None:
    assert feed(lines_of(environment_variables), line).facts == []


def test_env_dump_without_its_secrets() -> None:
    text = "SHELL=/bin/bash\nPWD=/workspace\nHOME=/root\nNCCL_DEBUG=WARN\nHF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nWANDB_API_KEY=0123\nVLLM_API_KEY=abc\nPATH=/usr/bin\nWORLD_SIZE=16\n_=/usr/bin/env\n"
    parser = file_of(environment_variables)
    assert parser.recognises(head("env.txt", text.encode())) > 0.5
    rows = parse_file(parser, "env.txt", text.encode())
    assert {key for key, _, _ in rows.facts} == {"env.NCCL_DEBUG", "env.WORLD_SIZE"}


# ------------------------------------------------------------------------------------------------------ whole files


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Sat Mar 14 06:17:40 2026\n+-----+\n| NVIDIA-SMI 535.104.05 Driver Version: 535.104.05 CUDA Version: 12.2 |\n", "gpu"),
        ("$ nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-31\n", "gpu"),
        ("core file size          (blocks, -c) 0\nopen files                      (-n) 1024\n", "environment"),
        ("Filesystem      Size  Used Avail Use% Mounted on\noverlay 40G 1G 39G 3% /\n", "environment"),
        (COLLECT, "environment"),
        ("2026-03-14 06:17:40 INFO start\n| NVIDIA-SMI 535.104.05 |\nstep 1 loss 2.0\n", ""),
        ("| NVIDIA-SMI 535.104.05 |\n+---+\n" + "{'loss': 2.0, 'epoch': 0.1}\n" * 20, ""),
        ("Traceback (most recent call last):\n  File x\n", ""),
        ("", ""),
        ("PID 77:  before the step\n" * 9, ""),
        ("-" * 60 + "\nArchitecture: LlamaForCausalLM\n", ""),
        ("10:00:01.2 INFO start\n10:00:02.3 step\n", ""),
    ],
)
def test_a_file_of_snapshots_is_told_from_a_log_that_holds_one(text: str, kind: str) -> None:
    assert snapshot_files.kind(head("x.txt", text.encode())) == kind


@given(st.text(max_size=300), st.binary(max_size=200))
def test_recognisers_and_readers_take_anything(text: str, junk: bytes) -> None:
    chosen = [
        p
        for module in (packages, environment, environment_variables, snapshot_files)
        for p in (module.PARSER if isinstance(module.PARSER, tuple) else (module.PARSER,))
    ]
    for parser in chosen:
        if isinstance(parser, FileParser):
            assert 0.0 <= parser.recognises(head("env.txt", text.encode("utf-8", "replace") + junk)) <= 1.0
    feed([p for p in chosen if isinstance(p, LineParser)], "Package  Version\n" + text + "\nPyTorch version: 2.4.0\n" + text)


def test_every_reader_is_loaded() -> None:
    names = {p.name for group in parsers.load() for p in group}
    assert {
        "nvidia-smi table",
        "nvidia-smi -q",
        "packages",
        "collect_env",
        "limits",
        "cgroup",
        "ps",
        "lspci",
        "quota",
        "nvidia-bug-report",
    } <= names
