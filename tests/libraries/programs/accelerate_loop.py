"""accelerate: a loop of training over data that it splits."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, log_with=globals().get("LOGGER"))
accelerator.init_trackers("regression", config={"lr": 1e-4})
assert accelerator.num_processes == 2
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model, optimizer, data = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=1e-4),
    DataLoader(TensorDataset(torch.ones(16, 4), torch.arange(16.0)[:, None]), batch_size=4),
)
seen = []
for step, (inputs, targets) in enumerate(data):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item()}, step=step)
    seen += accelerator.gather(targets).flatten().int().tolist()
assert sorted(seen) == list(range(16))
total = accelerator.gather(accelerator.unwrap_model(model).weight.sum()[None])
assert total[0] == total[1]
model, optimizer, data = accelerator.free_memory(model, optimizer, data)
accelerator.end_training()
accelerator.state._reset_state(True)
