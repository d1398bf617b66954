"""What Flower runs in its actors: a client's visit."""

from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.workloads import Workload, load

app = ClientApp()


@cache
def kept_in_actor(name: str) -> tuple[Workload, Tensor, nn.Module]:
    """Data and net of a workload, kept from visit to visit: faster than the tutorials, which build a net a visit."""
    workload = load(name)
    return workload, workload.normalised_inputs(), workload.build_net()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the message names, from the weights that it brings."""
    config = message.content["config"]
    torch.set_num_threads(config["threads"])
    workload, inputs, net = kept_in_actor(config["workload"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=workload.learning_rate)
    for indices in workload.batches(config["client"], config["round"]):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[indices]), workload.targets[indices]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": workload.num_samples[config["client"]]})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
