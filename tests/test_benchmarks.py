"""What a results file of the benchmarks says of the machine."""

import json
from argparse import Namespace
from pathlib import Path

import torch


def test_a_results_file_names_the_instruction_set(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])  # benchmarks is no part of what is installed
    from benchmarks.measurements import Table
    from benchmarks.report import circumstances, write_json

    write_json(tmp_path / "results.json", circumstances(Namespace(threads=1)), [Table("W1", [{"s": 1.0}])])
    about = json.loads((tmp_path / "results.json").read_text())
    assert about["cpu capability"] == torch.backends.cpu.get_cpu_capability()
