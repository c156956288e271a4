"""A masked language model: AdamW with groups, a warm-up by LambdaLR, clipped gradients, several loops over epochs,
an evaluation before the first."""
import torch
from common import adl, begin, result, weights
from torch import nn
from torch.utils.data import TensorDataset

VOCABULARY, LENGTH = 12, 6


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1), nn.Linear(16, VOCABULARY)

    def forward(self, text):
        return self.out(self.encoder(self.tokens(text)))


begin()
text = (torch.arange(32 * LENGTH).reshape(32, LENGTH) * 5) % (VOCABULARY - 1)
masked = text.clone()
masked[:, ::3] = VOCABULARY - 1
loader = adl.AdaptiveDataLoader(TensorDataset(masked, text), batch_size=8)
valid = adl.AdaptiveDataLoader(TensorDataset(masked[:8], text[:8]), batch_size=4)
net = Encoder()
decay = [p for n, p in net.named_parameters() if not n.endswith("bias")]
rest = [p for n, p in net.named_parameters() if n.endswith("bias")]
adamw = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=0.003)
schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: min(1.0, (step + 1) / 4))
model = adl.AdaptiveDataParallel(net, adamw, schedule)


def evaluate(name):
    stats = adl.Accumulator()
    model.eval()
    with torch.no_grad():
        for inputs, targets in valid:
            logits = model(inputs)
            stats["loss"] += nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            stats["count"] += targets.numel()
    with stats.synchronized():
        result(name, stats["loss"] / stats["count"])
    model.train()


evaluate("before")
for until in (1, 3):
    for epoch in adl.remaining_epochs_until(until):
        for inputs, targets in loader:
            adamw.zero_grad()
            nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
        schedule.step()
        evaluate(f"epoch{epoch}")
weights("model", net)
