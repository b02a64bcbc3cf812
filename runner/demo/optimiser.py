"""The optimiser of the demo's training, and what two processes need to train together."""

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Muon (Jordan 2024): momentum whose update is made orthogonal, for matrices only.

    A gradient matrix is usually dominated by a few directions; setting all its singular values to
    about 1 lets the rare directions, here the rare words, learn as fast as the common ones. Here
    in float32 (bfloat16 is slow on CPUs), matrices of one shape together.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    same_shape[parameter.shape].append(parameter)
            stacks = [
                torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                for parameters in same_shape.values()
            ]
            for parameters, updates in zip(same_shape.values(), shared_work(stacks), strict=True):
                # Scaled to the size of an Adam update, so that both can share a learning rate.
                scale = 0.2 * max(parameters[0].shape) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.sub_(update, alpha=group["lr"] * scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        average: Tensor = self.state[parameter].setdefault("average", torch.zeros_like(gradient))
        average.lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)  # Nesterov: a look ahead


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest (half-)orthogonal matrices, roughly, of (N, rows, columns).

    Newton and Schulz's iteration, with the coefficients of Muon's author: they push small singular
    values up fast and leave all of them between about 0.7 and 1.2, which is good enough.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def shared_work(stacks: list[Tensor]) -> list[Tensor]:
    """Makes all matrices orthogonal, each process its share of each stack (N, rows, columns)."""
    world, rank = dist.get_world_size(), dist.get_rank()
    done = [torch.zeros_like(stack) for stack in stacks]
    for stack, updates in zip(stacks, done, strict=True):
        if len(stack) > rank:
            updates[rank::world] = orthogonal(stack[rank::world])
    flat = torch.cat([updates.flatten() for updates in done])
    dist.all_reduce(flat)  # the others' shares are zero here, so the sum is the whole
    parts = torch.split(flat, [updates.numel() for updates in done])
    return [part.view_as(stack) for part, stack in zip(parts, stacks, strict=True)]


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Gives every process the mean gradient, in one message."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def decayed(progress: float, start: float) -> float:
    """The learning rate's factor: 1 until `start` of the training, then a line down to 0."""
    return min(1.0, max(0.0, (1 - progress) / (1 - start)))
