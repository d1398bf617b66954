"""Pages that list what the code has: configs by paper, callbacks, and the tags that runs log."""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from fl_lightning import callbacks
from fl_lightning.callbacks.tags import DESCRIPTIONS
from fl_lightning.config_files.bundled import bundled_files, bundled_rows
from markdown_from_docstrings import described_arguments, first_sentence, table
from method_pages import configs_by_method, documented_methods, page_of_paper


def configs_pages(root: Path) -> dict[str, str]:
    """docs/configs.md; and below it a page for each setting that is of no paper's page, and one for the settings of methods."""
    pages, papers = {}, []
    for paper, of_paper in groupby(bundled_rows().values(), lambda row: row.paper):
        short, _, title = paper.partition(": ")
        page, rows_of_paper = page_of_paper(paper, root), list(of_paper)
        if page.startswith("configs/"):
            text = [f"# Configs: {short}\n\n{title[0].upper()}{title[1:]}.\n"]
            for setting, of_setting in groupby(rows_of_paper, lambda row: row.table):
                rows = [[f"`{row.name}`", row.text, _methods_of(row.name)] for row in of_setting]
                text.append(f"## {setting}\n\n{table(['config', 'row', 'method'], rows)}")
            pages[f"docs/{page}"] = "\n".join(text)
        papers.append([f"[{short}]({page})", title, str(len(rows_of_paper))])
    methods = [(name, path.read_text(encoding="utf-8")) for name, path in bundled_files().items() if name not in bundled_rows()]
    rows = [[f"`{name}`", content.partition("\n")[0].removeprefix("# "), _methods_of(name)] for name, content in methods]
    what = "Settings to combine with any row"
    pages["docs/configs/methods.md"] = f"# Configs: Methods\n\n{what}.\n\n{table(['config', 'what', 'method'], rows)}"
    papers.append(["[Methods](configs/methods.md)", what.lower(), str(len(rows))])
    pages["docs/configs.md"] = (
        "# Configs by paper\n\n`fl-lightning fit --config NAME.yaml` runs a row of a paper's table. A paper's page has its "
        "rows with the paper's numbers and ours. Settings of a method come after any row: `--config mnist_tasks_fedavg.yaml "
        "--config tasks_ewc.yaml`. [Configs](data.md#configs) explains how your own config builds on them.\n\n"
        f"{table(['paper', 'what', 'configs'], papers)}"
    )
    return pages


def _methods_of(name: str) -> str:
    """Links to the pages of the method and the learner that a config names."""
    found = [method for method, configs in configs_by_method().items() if name in configs and method in documented_methods()]
    return ", ".join(f"[{method}](../methods/{method}.md)" for method in found)


def methods_of_configs(text: str) -> str:
    """A sentence with links to the pages of what the configs of a page of docs/papers/ run."""
    named = set(re.findall(r"`([\w.]+\.yaml)`", text))
    found = [method for method in documented_methods() if named & {*configs_by_method()[method]}]
    return f"\nPages of the methods: {', '.join(f'[{name}](../methods/{name}.md)' for name in found)}.\n" if found else ""


def with_files_of_configs(text: str, above: str) -> str:
    """A page, in whose tables a config that begins a row is linked to its file; ``above`` leads to the repository's folder."""

    def link(row: re.Match[str]) -> str:
        path = bundled_files().get(row[1])
        return row[0] if path is None else f"| [`{row[1]}`]({above}configs/{path.parent.name}/{row[1]}) |"

    return re.sub(r"^\| `([\w.]+\.yaml)` \|", link, text, flags=re.MULTILINE)


def callbacks_page() -> dict[str, str]:
    """docs/callbacks.md: every callback with the keys of its arguments."""
    text = [
        "# Callbacks\n",
        "What is watched during a run; none of it changes a weight. Those with a key `--callbacks.<name>` are part of every "
        "run, the others are added by `--trainer.callbacks+ <Name>`.\n",
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
