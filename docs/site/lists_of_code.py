"""Pages that list what the code has: configs by paper, callbacks, and the tags that runs log."""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby

from fl_lightning import callbacks
from fl_lightning.callbacks.tags import DESCRIPTIONS
from fl_lightning.config_files.bundled import bundled_files, bundled_rows
from markdown_from_docstrings import described_arguments, first_sentence, table


def configs_pages() -> dict[str, str]:
    """docs/configs.md, and below it a page a paper, with every row under its table, and one for the settings of methods."""
    pages, papers = {}, []
    for paper, of_paper in groupby(bundled_rows().values(), lambda row: row.paper):
        short, _, title = paper.partition(": ")
        text, rows_of_paper = [f"# Configs: {short}\n\n{title[0].upper()}{title[1:]}.\n"], list(of_paper)
        for setting, of_setting in groupby(rows_of_paper, lambda row: row.table):
            rows = [[f"`{row.name}`", row.text] for row in of_setting]
            text.append(f"## {setting}\n\n{table(['config', 'row'], rows)}")
        name = re.sub(r"\W+", "_", short).strip("_").lower()
        pages[f"docs/configs/{name}.md"] = "\n".join(text)
        papers.append([f"[{short}](configs/{name}.md)", title, str(len(rows_of_paper))])
    methods = [(name, path.read_text(encoding="utf-8")) for name, path in bundled_files().items() if name not in bundled_rows()]
    rows = [[f"`{name}`", content.partition("\n")[0].removeprefix("# ")] for name, content in methods]
    what = "Settings to combine with any row"
    pages["docs/configs/methods.md"] = f"# Configs: methods\n\n{what}.\n\n{table(['config', 'what'], rows)}"
    papers.append(["[Methods](configs/methods.md)", what.lower(), str(len(rows))])
    pages["docs/configs.md"] = (
        "# Configs by paper\n\n`fl-lightning fit --config NAME.yaml` runs a row of a paper's table. Settings of a method "
        "come after any row: `--config mnist_tasks_fedavg.yaml --config tasks_ewc.yaml`. [Configs](data.md#configs) explains "
        f"how your own config builds on them.\n\n{table(['paper', 'what', 'configs'], papers)}"
    )
    return pages


def callbacks_page() -> dict[str, str]:
    """docs/callbacks.md: every callback with the keys of its arguments."""
    text = [
        "# Callbacks\n",
        "What is watched during a run; none of it changes a weight. Those with a key `--callbacks.<name>` are part of every "
        "run, the others are added by `--trainer.callbacks+=<Name>`.\n",
    ]
    for name in callbacks.__all__:
        value = getattr(callbacks, name)
        if not isinstance(value, type):  # functions that callbacks call
            continue
        described = described_arguments(value)
        rows = [
            [f"`{getattr(value, 'key', 'trainer.callbacks')}.{parameter}`", f"`{one.default}`", described.get(parameter, "")]
            for parameter, one in inspect.signature(value).parameters.items()
            if one.default is not one.empty
        ]
        link = f"{{py:obj}}`Details <fl_lightning.callbacks.{name}>`"
        keys = table(["key", "default", "what"], rows) if rows else ""
        text.append(f"## {name}\n\n{first_sentence(value)} {link}\n\n{keys}")
    return {"docs/callbacks.md": "\n".join(text)}


def tags_page() -> dict[str, str]:
    """docs/tags.md: every tag with what TensorBoard says of it."""
    rows = [[", ".join(f"`{name}`" for name in _readable(pattern)), text] for pattern, text in DESCRIPTIONS.items()]
    head = (
        "# Tags\n\nWhat a run logs, by its tag, with the words that TensorBoard has for it. `N` is a number, `*` any name, "
        "such as that of a class; what is in brackets may be missing.\n"
    )
    return {"docs/tags.md": f"{head}\n{table(['tag', 'what'], rows)}"}


def _readable(pattern: str) -> Iterator[str]:
    """The names that a pattern of tags stands for, with signs that a reader knows."""
    optional = re.sub(r"\((\w+)\)\?", r"[\1]", pattern)
    plain = optional.replace(r"(\w+)", "*").replace(r"\d+", "N").replace(".*", "*")
    for alternative in re.split(r"\|(?![^(]*\))", plain):
        yield from _expanded(alternative)


def _expanded(name: str) -> list[str]:
    choice = re.search(r"\(([^()]*)\)", name)
    if choice is None:
        return [name]
    return [one for option in choice[1].split("|") for one in _expanded(name.replace(choice[0], option, 1))]
