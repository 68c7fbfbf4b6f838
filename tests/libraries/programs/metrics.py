"""torchmetrics: a metric that is computed over the values of all ranks."""

import torch
import torch.distributed as dist
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy

dist.init_process_group("gloo")
rank = dist.get_rank()
mean = MeanMetric()
mean.update(torch.arange(4.0) + 4 * rank)
assert mean.compute() == 3.5
accuracy = BinaryAccuracy()
accuracy.update(torch.ones(4), torch.full((4,), rank))
assert accuracy.compute() == 0.5
dist.destroy_process_group()
