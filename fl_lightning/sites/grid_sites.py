"""The server's connection to the sites, over Flower's grid."""

import json
import math
import re
import time
import warnings
from collections.abc import Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_lightning.checks import check_range
from fl_lightning.engines.flower import Sites
from fl_lightning.protocol import Packed
from fl_lightning.sites.link import records_of, values_of
from fl_lightning.sites.records import from_records, to_records

_PAUSE = 0.2  # seconds between two looks for replies; Flower's own loop waits 3
_ANEW = 10.0  # seconds after which a node that answered with an error is asked again
_LOST = 60.0  # seconds after which one that did not answer is, such as one that was killed with the question


class GridSites(Sites):
    """Sites at the nodes of a Flower federation, one client each.

    Every new node is asked for its client, so a site that comes back as another node is found.

    Args:
        grid: connection of a ServerApp.
        deadline: seconds within which all sites must connect before the first round, and for which a round waits for replies.

    Raises:
        ValueError: if ``deadline`` is not above 0 or not finite.
    """

    def __init__(self, grid: Grid, deadline: float) -> None:
        check_range("deadline", deadline, above=0, below=math.inf, hint="it is in seconds")
        self._grid, self._deadline = grid, deadline
        self._nodes: dict[int, int] = {}  # client -> node
        self._asked: dict[int, float] = {}  # node -> time from which it is asked again
        self._questions: dict[str, int] = {}  # without an answer yet: message -> node
        self._common = "{}"
        self._said: set[str] = set()

    def meet(self, common: Mapping[str, object], num_clients: int) -> None:
        self._common, end = json.dumps(common), time.monotonic() + self._deadline
        while missing := sorted({*range(num_clients)} - self._nodes.keys()):
            if refusals := self._get_to_know():
                raise ValueError(refusals[0])
            if time.monotonic() > end:
                raise ValueError(
                    f"deadline is {self._deadline:g} s, but clients {', '.join(map(str, missing))} have no site yet: start "
                    "their sites and SuperNodes, or raise it with --run-config deadline=SECONDS"
                )
            time.sleep(_PAUSE)

    def visit(self, round: int, requests: Mapping[int, Packed]) -> dict[int, Packed]:
        return self._ask("train", round, requests, f"round {round} is without client")

    def evaluate(self, round: int, models: Mapping[int, Packed]) -> dict[int, Packed]:
        return self._ask("evaluate", round, models, f"client forgetting of round {round} is without the data of client")

    def _ask(self, kind: str, round: int, requests: Mapping[int, Packed], without: str) -> dict[int, Packed]:
        """Send messages, by client, and wait for the replies; warns of each client without one, in words that begin so."""
        self._say(*self._get_to_know())
        client_of = {self._nodes[client]: client for client in requests}
        contents = {node: to_records(requests[client], common=self._common) for node, client in client_of.items()}
        waiting = self._send(kind, contents, str(round))
        problems = dict.fromkeys(client_of.keys() - waiting.values(), "its SuperNode is not connected")
        end, replies = time.monotonic() + self._deadline, dict[int, Packed]()
        while waiting and time.monotonic() < end:
            self._say(*self._get_to_know())
            for node, answer in self._receive(waiting).items():
                if answer.has_error():
                    problems[node] = _reason(answer)
                else:
                    replies[client_of[node]] = from_records(answer.content)
            time.sleep(_PAUSE if waiting else 0)
        problems |= dict.fromkeys(waiting.values(), f"its site sent no reply within {self._deadline:g} s")
        for node, why in problems.items():
            warnings.warn(f"{without} {client_of[node]}: {why}", stacklevel=1)
        return replies

    def _get_to_know(self) -> list[str]:
        """Ask new nodes for their client, and hear those that were asked; returns a line for each that is refused."""
        now, connected = time.monotonic(), [*self._grid.get_node_ids()]
        if new := [node for node in connected if self._asked.get(node, now) <= now]:
            self._questions |= self._send("query", dict.fromkeys(new, records_of({"common": self._common})), "settings")
            self._asked |= dict.fromkeys(new, now + _LOST)
        refusals: list[str] = []
        for node, answer in self._receive(self._questions).items():
            if answer.has_error():  # such as a site before its process runs
                self._asked[node] = now + _ANEW
                self._say(_reason(answer))
                continue
            self._asked[node] = math.inf
            facts = values_of(answer.content)
            if "refusal" in facts:
                refusals.append(facts["refusal"])
            elif (former := self._nodes.get(client := facts["client"])) != node:
                self._nodes[client] = node
                print(f"Site of client {client}: {facts['num_train']} training samples", flush=True)
                if former in connected:  # or Flower has not noticed that it ended
                    two = f"client {client} has two SuperNodes, and the newer one gets its messages"
                    self._say(f"{two}: see that each site has its own --client")
        return refusals

    def _send(self, kind: str, contents: Mapping[int, RecordDict], group: str) -> dict[str, int]:
        """Send a message to each node; returns numbers and nodes of those that Flower took."""
        messages = [Message(content, node, kind, group_id=group, ttl=self._deadline) for node, content in contents.items()]
        numbers = self._grid.push_messages(messages)  # None for a message that it did not take, which Flower logs
        return {number: node for number, node in zip(numbers, contents, strict=False) if number is not None}

    def _receive(self, waiting: dict[str, int]) -> dict[int, Message]:
        """The answers that have come, by node; their messages are no longer waited for."""
        answers = self._grid.pull_messages(list(waiting)) if waiting else []
        return {waiting.pop(answer.metadata.reply_to_message_id): answer for answer in answers}

    def _say(self, *lines: str) -> None:
        """Warn of each once."""
        for line in lines:
            if line not in self._said:
                warnings.warn(line, stacklevel=1)
        self._said.update(lines)


def _reason(answer: Message) -> str:
    """The line of a site's error; Flower puts the error's class around it."""
    said = str(answer.error.reason)
    match = re.fullmatch(r"<class '\S+'>:<'(.*)'>", said, re.DOTALL)
    return match[1] if match else said
