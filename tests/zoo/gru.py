"""GRU language model: embedding, two recurrent layers and a separate output layer."""

from common import next_token_text, training_job
from torch import nn

import onecurve as oc


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, 2, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        output, _state = self.rnn(self.embedding(tokens))
        return self.head(self.dropout(output))


def job():
    return training_job(LanguageModel, next_token_text, oc.loss.next_token)
