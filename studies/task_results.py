"""Table of a study on task streams: ``python studies/task_results.py OUT``, OUT as ``studies/run.py`` left it.

Prints Markdown: for every config the mean over seeds and, with more than one, the standard deviation.
"""

import json
import sys
from pathlib import Path
from statistics import mean, stdev


def table(out: Path) -> str:
    """Finished runs by config, the most accurate first."""
    runs: dict[str, list[dict]] = {}
    for file in sorted(out.glob("seed_*/*/version_*/results.json")):
        runs.setdefault(file.parts[-3], []).append(json.loads(file.read_text()))
    lines = ["| run | seeds | accuracy | forgetting | model, MB | up, MB | down, MB |", "| --- " * 7 + "|"]
    for name, found in sorted(runs.items(), key=lambda item: -mean(run["tasks"]["tasks/accuracy"] for run in item[1])):
        cells = [name, str(len(found))]
        cells += [_spread([run["tasks"][f"tasks/{score}"] for run in found], 3) for score in ("accuracy", "forgetting")]
        cells.append(_spread([run["tasks"]["tasks/model_megabytes"] for run in found], 2))
        cells += [f"{mean(run[direction] for run in found) / 1e6:.1f}" for direction in ("bytes_up", "bytes_down")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):z.{digits}f}{spread}"


def show(out: Path) -> None:
    """Print the table of all runs under ``out``."""
    print(table(out))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python studies/task_results.py OUT")
    show(Path(sys.argv[1]))
