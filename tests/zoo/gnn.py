"""Graph networks of PyTorch Geometric: a batch is one large graph, as a Batch object or as plain tensors."""

import torch
from common import classification, training_job
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool


def convolution(kind, inputs, outputs):
    return GCNConv(inputs, outputs) if kind == "gcn" else GATConv(inputs, outputs // 4, heads=4)


class GraphClassifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.convolutions = nn.ModuleList(convolution(kind, inputs, 32) for inputs in (8, 32, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, batch):
        return self.classify(batch.x, batch.edge_index, batch.batch, batch.num_graphs)

    def classify(self, x, edges, graph_of_node, graphs):
        for layer in self.convolutions:
            x = layer(x, edges).relu()
        return self.head(global_mean_pool(x, graph_of_node, size=graphs))


class TensorGraphClassifier(GraphClassifier):
    def forward(self, x, edges, graph_of_node, graphs):
        return self.classify(x, edges, graph_of_node, graphs)


def sample(index):
    nodes = 5 + index % 4
    edges = torch.randint(nodes, (2, 12))
    return Data(x=torch.randn(nodes, 8), edge_index=edges), index % 4


def collate_batch(samples):
    graphs, labels = zip(*samples, strict=True)
    return Batch.from_data_list(list(graphs)), torch.tensor(labels)


def collate_tensors(samples):
    batch, labels = collate_batch(samples)
    return (batch.x, batch.edge_index, batch.batch, batch.num_graphs), labels


def job(kind: str = "gcn", form: str = "batch"):
    if form == "batch":
        return training_job(lambda: GraphClassifier(kind), sample, classification, collate=collate_batch)
    return training_job(lambda: TensorGraphClassifier(kind), sample, classification, collate=collate_tensors)
