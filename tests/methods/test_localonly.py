"""LocalOnly against plain visits."""

import pytest
from declared_by_tests import Cost

from fl_lightning import LocalOnly

COSTS = {"LocalOnly": Cost(down=(0, 0, 0), up=(0, 0, 0), client=(1, 0, 0), personal_by_rule=True)}


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_clients_train_alone(tiny):
    """One visit after another from the initial net, whatever the others do; the global net stays as it began."""
    method, personal = tiny.train(LocalOnly), {}
    for round, cohort in tiny.rounds:
        for client in cohort:
            personal[client] = tiny.visit(personal.get(client, tiny.new_net()), client, round)
    tiny.assert_same(method.net, tiny.new_net(), atol=0)
    tiny.assert_kept(method, {client: net.state_dict() for client, net in personal.items()})
    for client, net in personal.items():
        tiny.assert_personal(method, client, net)
    assert [(report.bytes_down, report.bytes_up) for report in method.reports] == [(0, 0)] * 3
    assert method.keeps_models
    assert not method.has_global_model
