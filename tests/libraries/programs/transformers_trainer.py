"""The Trainer of transformers: an epoch over a model and data made here."""

import gc
import tempfile

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from transformers import Trainer, TrainingArguments


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        outputs = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "outputs": outputs}


def train(arguments):
    torch.manual_seed(0)
    data = [{"inputs": torch.ones(4), "labels": torch.tensor([float(number)])} for number in range(16)]
    callbacks = [LOGGER] if "LOGGER" in globals() else []  # noqa: F821  # set by the test
    trainer = Trainer(Regression(), arguments, train_dataset=data, callbacks=callbacks)
    result = trainer.train()
    assert result.global_step == 4  # 16 samples, 2 for each of 2 ranks
    weights = [None, None]
    dist.all_gather_object(weights, trainer.accelerator.unwrap_model(trainer.model).layer.weight.tolist())
    assert weights[0] == weights[1]


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    assert arguments.world_size == 2
    train(arguments)
gc.collect()
dist.destroy_process_group()
AcceleratorState._reset_state(True)
