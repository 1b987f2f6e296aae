"""TabTransformer: one embedding table per categorical column, attention over columns, numbers added at the end."""

import torch
from common import classification, training_job
from torch import nn

CATEGORIES = (5, 9, 3, 7)
NUMBERS = 6


class TabTransformer(nn.Module):
    def __init__(self, width=16, depth=2, classes=4):
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(categories, width) for categories in CATEGORIES)
        self.column_shift = nn.Parameter(0.02 * torch.randn(len(CATEGORIES), width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(NUMBERS)
        self.head = nn.Sequential(nn.Linear(len(CATEGORIES) * width + NUMBERS, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, categories, numbers):
        columns = [table(categories[:, index]) for index, table in enumerate(self.columns)]
        context = self.encoder(torch.stack(columns, 1) + self.column_shift)
        return self.head(torch.cat([context.flatten(1), self.norm(numbers)], 1))


def sample(index):
    categories = torch.stack([torch.randint(count, ()) for count in CATEGORIES])
    return (categories, torch.randn(NUMBERS)), index % 4


def job():
    return training_job(TabTransformer, sample, classification)
