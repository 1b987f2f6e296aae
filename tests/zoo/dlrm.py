"""DLRM: embedding bags of a recommender, with sparse gradients on request."""

import torch
import torch.nn.functional as F
from common import training_job
from torch import nn

import onecurve as oc

ROWS = (50, 20, 30)


class Recommender(nn.Module):
    def __init__(self, width=16, sparse=False):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for rows in ROWS)
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        features = len(ROWS) + 1
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)
        self.top = nn.Sequential(nn.Linear(width + features * (features - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        features = torch.stack([x, *(table(sparse[:, index]) for index, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], 1))[:, 0]


def sample(index):
    return (torch.randn(13), torch.stack([torch.randint(rows, (3,)) for rows in ROWS])), float(index % 2)


def click_loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target.to(output), reduction="none")


def job(sparse: bool = False, opt: str = "adamw"):
    sgd = {"optimizer": oc.SGD(lr=0.1), "clip": None} if opt == "sgd" else {}
    return training_job(lambda: Recommender(sparse=sparse), sample, click_loss, **sgd)
