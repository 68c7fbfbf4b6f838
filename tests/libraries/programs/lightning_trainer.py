"""The Trainer of Lightning: an epoch on two ranks, each with its half of the data."""

import gc
import logging

import lightning
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def training_step(self, batch, index):
        inputs, targets = batch
        self.seen += targets.flatten().int().tolist()
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
model = Regression()
data = DataLoader(TensorDataset(torch.ones(16, 4), torch.arange(16.0)[:, None]), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    logger=globals().get("LOGGER", False),
    log_every_n_steps=1,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
assert trainer.world_size == 2
seen = [None, None]
dist.all_gather_object(seen, model.seen)
assert sorted(seen[0] + seen[1]) == list(range(16))
weights = [None, None]
dist.all_gather_object(weights, model.layer.weight.tolist())
assert weights[0] == weights[1]
gc.collect()
dist.destroy_process_group()
