"""FedWeIT as a plain loop over what clients and server hold."""

import math
from types import SimpleNamespace

import torch

L1, L2, DECAY, DENSITY = 0.02, 3.0, 0.05, 0.4
LAYERS = ("conv", "hidden")


def weight(layer, part):
    return f"{layer}.parametrizations.weight.{'original' if part == 'base' else f'0.{part}'}"


def hard(adaptive):
    return torch.where(adaptive.abs() > L1, adaptive, 0.0)


def rows(factors, tensor):
    """Each output's row times its factor."""
    return torch.stack([factor * row for factor, row in zip(factors, tensor)])


def authors_outputs(mask, density):
    """Their ``m_sorted = sort(abs(mask)); abs(mask) > m_sorted[floor(len(m_sorted) * density)]``, 1 for an output sent."""
    sizes = sorted(abs(m) for m in mask)
    threshold = sizes[math.floor(len(sizes) * density)]
    return [float(abs(m) > threshold) for m in mask]


class Plain:
    """FedWeIT: what clients and server hold, in dicts by layer.

    Args:
        tiny: the federation.
        masks: the net's m, whose entries every task has in an order drawn for it.
    """

    def __init__(
        self,
        tiny,
        masks,
        cohorts=None,
        train_unsampled=False,
        upload="recommended",
        retroactive=False,
        adaptive_start="initial",
        share_base=True,
        mask=True,
        adaptive=True,
        penalize_mask=False,
        mu=0.0,
    ):
        self.tiny, self.masks, self.upload, self.retroactive = tiny, masks, upload, retroactive
        self.penalize_mask, self.mu = penalize_mask, mu
        self.adaptive_start = adaptive_start
        self.share_base, self.mask, self.adaptive = share_base, mask, adaptive
        self.initial = {layer: tiny.weights[f"{layer}.weight"] for layer in LAYERS}
        self.G, self.kb = dict(self.initial), {}
        self.clients = [SimpleNamespace(B=dict(self.initial), at=-1, served=-1, tasks={}) for _ in range(3)]
        self.outputs, self.bytes, self.contributions = {}, [], set()
        plan = [(t, range(3) if train_unsampled else cohort) for _, t, cohort in tiny.rounds(cohorts)]
        for round, t, cohort in tiny.rounds(cohorts):
            down = up = 0
            sent, learned = [], {}
            for c in plan[round - 1][1]:
                me = self.clients[c]
                if me.at != t:
                    self.begin(c, me, t)
                if c in cohort:
                    down += self.receive(c, me, t)
                self.train(c, me, t, round)
                is_last = not any(when == t and c in others for when, others in plan[round:])
                me.tasks[t].over = is_last
                self.evaluate(c, me, t, round)
                if is_last and not retroactive and adaptive:
                    me.tasks[t].A = {layer: hard(me.tasks[t].A[layer]) for layer in LAYERS}
                if c in cohort:
                    if share_base:
                        sent.append(self.choose(me, t))
                        up += sum(int(B.count_nonzero()) for B, _ in sent[-1].values())
                    if is_last and adaptive:
                        learned[c, t] = {layer: hard(me.tasks[t].A[layer]) for layer in LAYERS}
                        up += sum(int(A.count_nonzero()) for A in learned[c, t].values())
            if share_base:
                self.merge(sent)
            self.kb |= learned
            self.bytes.append((8 * down, 8 * up))

    def factor(self, m):
        return torch.sigmoid(m) if self.mask else torch.ones_like(m)

    def decomposed(self, w, layer, t):
        """``B * m_t + A_t``, from a flat dict."""
        theta = rows(self.factor(w[f"m{t}.{layer}"]), w[f"B.{layer}"])
        return theta + w[f"A{t}.{layer}"] if self.adaptive else theta

    def composed(self, w, layer, t, alpha, known):
        """``B * m_t + A_t + sum_i alpha_i A_i``."""
        return self.decomposed(w, layer, t) + sum(alpha[i] * self.kb[entry][layer] for i, entry in enumerate(known))

    def flat(self, me):
        parts = {f"B.{layer}": me.B[layer] for layer in LAYERS}
        for t, task in me.tasks.items():
            parts |= {f"m{t}.{layer}": task.m[layer] for layer in LAYERS} | {f"A{t}.{layer}": task.A[layer] for layer in LAYERS}
        return parts

    def begin(self, c, me, t):
        """Old tasks' weights before anything of the new task is received; m, A, biases and head afresh."""
        me.old = [j for j, task in me.tasks.items() if task.over]
        me.before = {(layer, j): self.decomposed(self.flat(me), layer, j) for layer in LAYERS for j in me.old}
        per_task = {name: self.tiny.weights[name] for name in ("conv.bias", "hidden.bias")} | self.tiny.drawn_head(c, t)
        A = dict(me.B) if self.adaptive_start == "base" else {layer: self.initial[layer] / 3 for layer in LAYERS}
        m = {layer: self.tiny.drawn(weight(layer, "mask"), c, t, mask) for layer, mask in self.masks.items()}
        me.at, me.tasks[t] = t, SimpleNamespace(m=m, A=A, per_task=per_task, known=[], alpha={}, over=False)

    def receive(self, c, me, t):
        """Non-zeros of theta_G replace B; on the first time in a task, each other client's newest task. Returns how many."""
        count = 0
        if self.share_base:
            count = sum(int(G.count_nonzero()) for G in self.G.values())
            me.B = {layer: torch.where(self.G[layer] != 0, self.G[layer], me.B[layer]) for layer in LAYERS}
        if me.served != t:
            newest = [max((j for i, j in self.kb if i == other), default=None) for other in range(3)]
            known = [(i, j) for i, j in enumerate(newest) if j is not None and i != c]
            me.tasks[t].known = known
            me.tasks[t].alpha = {layer: torch.tensor([1 / len(known)] * len(known)).double() for layer in LAYERS if known}
            count += sum(int(A.count_nonzero()) for entry in known for A in self.kb[entry].values())
            me.served = t
        return count

    def train(self, c, me, t, round):
        task = me.tasks[t]
        trained = {f"B.{layer}": me.B[layer] for layer in LAYERS} | {f"m{t}.{layer}": task.m[layer] for layer in LAYERS}
        trained |= {f"A{t}.{layer}": task.A[layer] for layer in LAYERS} | task.per_task
        trained |= {f"alpha.{layer}": alpha for layer, alpha in task.alpha.items()}
        if self.retroactive:
            trained |= {f"A{j}.{layer}": me.tasks[j].A[layer] for layer in LAYERS for j in me.old}
        rest = {name: tensor for name, tensor in self.flat(me).items() if name not in trained}

        def objective(w, inputs, targets):
            flat = {**w, **rest}
            thetas = {layer: self.composed(flat, layer, t, w.get(f"alpha.{layer}"), task.known) for layer in LAYERS}
            net = {name: w[name] for name in task.per_task} | {f"{layer}.weight": thetas[layer] for layer in LAYERS}
            value = self.tiny.loss(net, inputs, targets)
            for layer in LAYERS:
                for j in me.old:
                    value = value + L2 / 2 * ((self.decomposed(flat, layer, j) - me.before[layer, j]) ** 2).sum()
                    value = value + L1 * flat[f"A{j}.{layer}"].abs().sum()
                if self.adaptive:
                    A = w[f"A{t}.{layer}"]
                    value = value + L1 * A.abs().sum() + DECAY / 2 * (A**2).sum()
                if self.mask:
                    value = value + DECAY / 2 * (w[f"m{t}.{layer}"] ** 2).sum()
                    value = value + self.penalize_mask * L1 * (1 / (1 + (-w[f"m{t}.{layer}"]).exp())).sum()
                value = value + (t == 0) * DECAY / 2 * (w[f"B.{layer}"] ** 2).sum()
                value = value + self.mu / 2 * ((w[f"B.{layer}"] - trained[f"B.{layer}"]) ** 2).sum()
            return value

        after = self.tiny.fit(trained, c, round, objective)
        me.B = {layer: after[f"B.{layer}"] for layer in LAYERS}
        task.m = {layer: after[f"m{t}.{layer}"] for layer in LAYERS}
        task.per_task = {name: after[name] for name in task.per_task}
        task.alpha = {layer: after[f"alpha.{layer}"] for layer in task.alpha}
        for j in (t, *(me.old if self.retroactive else ())):
            me.tasks[j].A = {layer: after[f"A{j}.{layer}"] for layer in LAYERS}

    def evaluate(self, c, me, t, round):
        flat = {name: hard(tensor) if name[0] == "A" else tensor for name, tensor in self.flat(me).items()}
        for j in (*me.old, t):
            task = me.tasks[j]
            thetas = {f"{layer}.weight": self.composed(flat, layer, j, task.alpha.get(layer), task.known) for layer in LAYERS}
            self.outputs[c, round, j] = self.tiny.logits({**task.per_task, **thetas}, self.tiny.samples(c, j, "test")[0])

    def choose(self, me, t):
        """Per layer what is sent of B, and a 1 for each output that is."""
        chosen = {}
        for layer in LAYERS:
            B, m = me.B[layer], me.tasks[t].m[layer]
            if not self.mask:
                outputs = torch.ones(len(m))
            elif self.upload == "code":
                outputs = torch.tensor(authors_outputs(m.tolist(), DENSITY))
            else:
                best = sorted(range(len(m)), key=lambda o: -float(m[o]))[: max(round(DENSITY * len(m)), 1)]
                outputs = torch.tensor([float(o in best) for o in range(len(m))])
            outputs = outputs.double()
            factors = outputs * torch.sigmoid(m) if self.upload == "paper" and self.mask else outputs
            chosen[layer] = (rows(factors, B), outputs)
        return chosen

    def merge(self, sent):
        for layer in LAYERS:
            total = sum(client[layer][0] for client in sent)
            count = sum(client[layer][1] for client in sent)
            self.contributions |= set(count.tolist())
            divisor = torch.full_like(count, len(sent)) if self.upload == "paper" else count.clamp_min(1)
            self.G[layer] = rows(1 / divisor, total)
